# SPDX-License-Identifier: MIT
"""Node reads and answers policies as Python does: the vectors, their tables, and texts that are made of their parts."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentbox.errors import PolicySyntaxError
from agentbox.guest.tables import tables
from agentbox.policy.document import canonical_text
from tests.nodes import name, nodes
from tests.vectors import make_node_lists
from tests.vectors.policy_world import World
from tests.vectors.test_policy_vectors import VECTORS

SCRIPT = Path(__file__).with_name("policy.mjs")
GROUPS = {kind: json.loads((VECTORS / f"{kind}.json").read_text("utf-8")) for kind in ("parse", "hash", "decide")}
RANDOM_TEXTS = 3000
# Values of each key, good and bad.
PATHS = "./a ~/b ~c /x/*.txt /x/**/y /x/** a** ../.. a/../b $HOME ${X} file://x * ? [a] ./lnk /w/lnk/../z//y/. **/.."
NETS = (
    "h.test h.test:443 *.h.test:1 10.0.0.1 010.0.0.1 ::1 [::1]:80 [::ffff:1.2.3.4] 1:2 0x7f.1 * *:0 1.*.3 fe80::1%eth0 "
    "cidr/10.0.0.0/8:5 cidr/10.0.0.1/8 cidr/[fd00::/8]:1 cidr/::ffff:10.0.0.0/104 cidr/10.0.0.0/255.0.0.0 cidr/::/129 "
    "cidr/10.0.0.0 cidr/10.0.0.0/08 cidr/fe80::%1/64 cidr/::/0 unix:/s unix:@a* unix:* unix: unix:@ H.Test. a..b *..b "
    "[a-c].d"
)
VALUES = {
    "read:": PATHS,
    "Write :": f"{PATHS} ./a\tmax=10MB b\tmax=0 max=1 ./c\tmax=9007199254740992 ./d\tmax=1tb e\tmax=2KB",
    "net:": f"{NETS} h.test\t@3/min h\t@0/s h\t@1/week",
    "exec:": "git git\tstatus 'git \"a\\\"b\"\t'c'd \"a\\\" a\\\tb a\\ '' x* ./run ~/bin/x '\U0001f600'\tb",
    "env:": "HOME A=b A\tB [AB]* [!A]x [ []] $X \u00e9",
    "read-once: ": PATHS,
    "limits: ": "cpus=1.5 pids=0 pids=1.5 disk_mb=007 memory_mb=999999999999999 timeout_seconds=0.001 a=1 cpus= cpus",
    "protect: ": "on off On",
    "include: ": "/w/inc /w/loop /w/none inc",
    "deny: ": "read\t./a net\t* exec\tgit write\t./a\tmax=1 env\tA net\th\t@1/s frob\tx net:\tx READ\tb",
    "allow:": "read\t./a net\th read-once\tx protect\ton",
    "k_y: ": "a",
}
# Characters and words that some reader would trip over, put anywhere.
ODD = [
    *[
        ",",
        ",,",
        "\n",
        "\r\n",
        "\r",
        "\t",
        " ",
        " # c",
        "#",
        ":",
        "=",
        "@",
        "/",
        "\ud800",
        "\u212a:",
        "\ufb33",
        "\u200b",
    ],
    *[
        "\u00a0",
        "\ufeff",
        "\U0001f600",
        "Lim\u0131ts: ",
        "lim\u017fits: ",
        "deny : ",
        " read: ",
        "READ=",
        "net x",
        "\x7f",
        "%",
        "]",
    ],
]
FILES = {"/w/inc": "read: ./included\nenv: A, \n", "/w/loop": "include: ./loop\n"}


SURROUNDINGS = {"files": FILES, "programs": {"git": "/usr/bin/git"}, "links": {"/w/lnk": "../elsewhere/deep"}}


def random_text(chance: random.Random) -> str:
    """One to four lines of a key and some of its values, a third of them with something odd somewhere."""
    lines = []
    for _ in range(chance.randint(1, 4)):
        key = chance.choice(list(VALUES))
        line = (
            key + chance.choice(["", " "]) + ", ".join(chance.choices(VALUES[key].split(" "), k=chance.randint(1, 2)))
        )
        if chance.random() < 1 / 3:
            at = chance.randint(0, len(line))
            line = line[:at] + chance.choice(ODD) + line[at:]
        lines.append(line)
    return "\n".join(lines)


@pytest.fixture(params=nodes(), ids=name)
def node(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def of_node(node: str, asked: list[dict[str, Any]]) -> list[Any]:
    lines = "".join(f"{json.dumps(one)}\n" for one in asked)
    done = subprocess.run([node, str(SCRIPT)], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_python(one: dict[str, Any]) -> Any:
    content = bytes.fromhex(one["bytes_hex"]) if "bytes_hex" in one else one["text"]
    try:
        policy = World(one, one["root"], one["home"]).parse(content)
    except PolicySyntaxError as error:
        return {"error": {"path": error.path, "line": error.line, "column": error.column, "problem": error.problem}}
    # Through JSON, as a guard gets it.
    return {"rules": canonical_text(policy).splitlines(), "tables": json.loads(json.dumps(tables(policy)))}


def differences(node: str, asked: list[dict[str, Any]]) -> list[Any]:
    found = of_node(node, asked)
    assert len(found) == len(asked)
    expected = [of_python(one) for one in asked]
    return [(one, "python", p, "node", n) for one, p, n in zip(asked, expected, found, strict=True) if p != n]


def test_node_passes_the_policy_vectors(node: str) -> None:
    done = subprocess.run([node, str(SCRIPT), str(VECTORS)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"{kind}: {len(group['cases'])}" for kind, group in GROUPS.items()]


def test_node_makes_the_tables_that_python_makes(node: str) -> None:
    asked = []
    for group in GROUPS.values():
        for case in group["cases"]:
            texts = [case[key] for key in ("text", "policy", "ceiling") if key in case]
            world = {"root": group["root"], "home": group["home"], **case}
            asked += [{**world, "text": text} for text in texts] if texts else [world]
    assert differences(node, asked) == []


def test_node_reads_random_texts_as_python_does(node: str) -> None:
    chance = random.Random(7531)
    world = {"root": "/w", "home": "/home/u", **SURROUNDINGS}
    asked = [{**world, "text": random_text(chance)} for _ in range(RANDOM_TEXTS)]
    read = sum("rules" in of_python(one) for one in asked)
    assert RANDOM_TEXTS // 10 < read < RANDOM_TEXTS * 9 // 10
    assert differences(node, asked)[:3] == []


def test_lists_of_node_are_those_of_python() -> None:
    assert make_node_lists.LISTS.read_text("utf-8") == make_node_lists.text(), (
        "write them anew: python -m tests.vectors.make_node_lists"
    )
