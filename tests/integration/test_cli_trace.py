# SPDX-License-Identifier: MIT
"""`agentbox show`, `agentbox verify` and `agentbox key` as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentbox.cli import exit_codes
from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.verdict import Status
from agentbox.trace.writer import Run, TraceWriter
from tests.integration.commands import Finished, agentbox, assert_is_told_what_to_do
from tests.running_server import clean_environment

FILES = Path(__file__).parents[2] / "spec" / "trace" / "vectors" / "files"


class Home:
    """A working directory and a state directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {"AGENTBOX_STATE_DIR": str(directory / "state")}
        self.store = KeyStore(directory / "state" / "trace")

    def run(self, *arguments: str) -> Finished:
        return agentbox(*arguments, cwd=self.directory, environment=self.environment)

    def record(self, name: str = "trace.jsonl", *, seal: bool = True, path: str = "data/café.txt") -> Path:
        store = self.store
        file = self.directory / name
        writer = TraceWriter(file, Run("r1", "0" * 64, {}), store.load_or_create(), Ledger(store.ledger_path))
        writer.append("effect", "fs.read_text", {"path": path}, result="text", origin="guest", pid=7)
        writer.append("deny", "read", {"target": "/etc/passwd", "enforced": True}, origin="guest", pid=7)
        writer.append("meta", "run.end", {"returncode": 0})
        if seal:
            writer.seal()
        else:
            writer.flush()
            writer.close()
        return file


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_show_names_only_the_first_lines_of_what_is_no_trace(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "trace.jsonl").write_text("x\n" * 5000)
    done = home.run("show")
    assert done.exit_code == exit_codes.FAILURE
    assert len(done.stderr.splitlines()) < 20
    assert "4990 more lines" in done.stderr


def test_verify_says_that_a_trace_is_whole_and_who_signed(home: Home) -> None:
    home.record()
    done = home.run("verify")
    key = json.loads(home.run("key", "show", "--json").stdout)["id"]
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "agentbox: trace ok — 5 entries, hash chain verified",
        f"  sealed, signed with key {key}",
    ]


@pytest.mark.parametrize("arguments", [("-t", "other.jsonl"), ("--trace", "other.jsonl"), ("other.jsonl",)])
def test_trace_is_named_with_an_option_or_without(home: Home, arguments: tuple[str, ...]) -> None:
    home.record("other.jsonl")
    assert home.run("verify", *arguments).exit_code == 0
    assert home.run("show", *arguments).exit_code == 0


def test_trace_that_is_named_twice_is_a_usage_error(home: Home) -> None:
    done = home.run("verify", "a", "-t", "b")
    assert done.exit_code == 2
    assert "once" in done.stderr


def test_verify_names_the_entry_that_was_edited(home: Home) -> None:
    path = home.record()
    path.write_bytes(path.read_bytes().replace(b"/caf", b"/cav"))
    done = home.run("verify")
    assert done.exit_code == 1
    assert done.stdout.startswith("agentbox: TAMPERED — hash chain breaks at entry 1\n  edited: ")
    verdict = json.loads(home.run("verify", "--json").stdout)
    assert (verdict["status"], verdict["index"], verdict["ok"], verdict["tampered"]) == ("edited", 1, False, True)


@pytest.mark.parametrize(
    ("file", "words", "code"),
    [
        ("truncated_two.jsonl", "INCOMPLETE — no end after 10 entries", 5),
        ("torn.jsonl", "INCOMPLETE — torn last line after 8 entries", 5),
        ("whole.jsonl", "trace ok — 12 entries", 0),
        ("signed_by_other_key.jsonl", "NOT TRUSTED", 6),
        ("text.jsonl", "not a trace", 7),
        ("empty.jsonl", "not a trace", 7),
        ("rehashed.jsonl", "TAMPERED — rewritten", 1),
        ("swapped.jsonl", "TAMPERED — hash chain breaks at entry 2\n  reordered", 1),
        ("deleted_middle.jsonl", "TAMPERED — hash chain breaks at entry 3\n  deleted", 1),
        ("inserted_copy.jsonl", "TAMPERED — hash chain breaks at entry 4\n  inserted", 1),
    ],
)
def test_each_finding_has_its_line_and_exit_code(home: Home, file: str, words: str, code: int) -> None:
    key = home.directory / "key.pem"
    key.write_text(json.loads((FILES.parent / "verdicts.json").read_text())["keys"]["own"])
    done = home.run("verify", str(FILES / file), "--key", str(key))
    assert done.exit_code == code
    assert words in done.stdout
    assert done.stderr == ""


def test_every_status_has_an_exit_code_and_only_ok_is_zero() -> None:
    codes = {status: exit_codes.for_verdict(status) for status in Status}
    assert [status for status, code in codes.items() if code == 0] == [Status.OK]


def test_truncated_trace_is_seen_through_the_ledger(home: Home) -> None:
    path = home.record()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    done = home.run("verify")
    assert done.exit_code == 1
    assert done.stdout.startswith("agentbox: TAMPERED — truncated after entry 2\n")


@pytest.mark.parametrize(("name", "count"), [("old_python", 9), ("old_node", 7)])
def test_old_trace_verifies_and_is_said_to_promise_less(home: Home, name: str, count: int) -> None:
    done = home.run("verify", "-t", str(FILES / f"{name}.jsonl"))
    assert done.exit_code == 0
    assert done.stdout.startswith(
        f"agentbox: trace ok — {count} entries, hash chain verified\n  the old form has no sig"
    )


def test_show_prints_one_line_a_record(home: Home) -> None:
    home.record()
    lines = home.run("show").stdout.splitlines()
    assert lines[1:4] == [
        "   1  effect   fs.read_text    data/café.txt",
        "   2  deny     read            /etc/passwd",
        '   3  meta     run.end         {"returncode": 0}',
    ]


def test_show_of_an_old_trace_is_what_the_old_command_printed(home: Home) -> None:
    done = home.run("show", "-t", str(FILES / "old_python.jsonl"))
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "   0  meta     run.start       python agent.py",
        "   1  effect   fs.read_text    data/café.txt",
        "   2  effect   fs.write_text   out/report.md",
        "   3  effect   proc.run        echo hi",
        "   4  effect   clock.now       {}",
        "   5  effect   rand.random     {}",
        "   6  observe  fs.open_read    data/notes.txt",
        "   7  deny     read            /etc/passwd",
        '   8  meta     run.end         {"returncode": 0}',
    ]


def test_show_escapes_what_would_move_the_cursor(home: Home) -> None:
    home.record(path="x\x1b[2J\n   9  effect   forged\u202e\u2028")
    text, objects = home.run("show").stdout, home.run("show", "--json").stdout
    assert not any(char in text + objects for char in "\x1b\u202e\u2028")
    assert len(text.splitlines()) == len(objects.splitlines()) == 5
    assert json.loads(objects.splitlines()[1])["args"]["path"] == "x\x1b[2J\n   9  effect   forged\u202e\u2028"


def test_show_reads_around_damage_and_says_so(home: Home) -> None:
    path = home.record()
    path.write_bytes(b"garbage\n" + path.read_bytes() + b"{")
    done = home.run("show")
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 5
    assert "line 1 is no record" in done.stderr
    assert "line 7 is no record" in done.stderr


@pytest.mark.parametrize("command", ["show", "verify"])
def test_missing_trace_is_told_in_a_line(home: Home, command: str) -> None:
    assert_is_told_what_to_do(home.run(command), 1, "trace.jsonl", "No such file")


def test_reader_that_goes_away_is_no_traceback(home: Home) -> None:
    home.record()
    big = home.directory / "big.jsonl"
    big.write_bytes(home.directory.joinpath("trace.jsonl").read_bytes().splitlines(keepends=True)[1] * 5000)
    done = subprocess.run(
        ["bash", "-c", '"$0" -m agentbox.cli.main show -t big.jsonl | head -1', sys.executable],
        env=clean_environment(home.environment),
        cwd=home.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_key_is_made_shown_replaced_and_handed_out(home: Home) -> None:
    assert_is_told_what_to_do(home.run("key", "show"), 1, "no key")
    assert_is_told_what_to_do(home.run("key", "export"), 1, "no key")
    made = json.loads(home.run("key", "new", "--json").stdout)
    assert_is_told_what_to_do(home.run("key", "new"), 1, made["id"])
    assert json.loads(home.run("key", "show", "--json").stdout) == made
    assert made["id"] in home.run("key", "show").stdout
    assert home.run("key", "export").stdout == made["public_pem"]
    path = home.record()
    assert home.run("key", "export", "mine.pem").exit_code == 0
    assert_is_told_what_to_do(home.run("key", "export", "mine.pem"), 1, "mine.pem")
    replaced = json.loads(home.run("key", "new", "--replace", "--json").stdout)
    assert replaced["former"] == [made["id"]]
    assert home.run("verify", str(path)).exit_code == 0
    assert home.run("verify", str(path), "--key", "mine.pem").exit_code == 0
    home.run("key", "export", "new.pem")
    path.rename(home.directory / "elsewhere.jsonl")
    home.store.ledger_path.unlink()
    assert home.run("verify", "elsewhere.jsonl", "--key", "new.pem").exit_code == 6


@pytest.mark.parametrize("arguments", [("verify",), ("key", "show"), ("key", "new", "--replace")])
def test_key_that_others_could_read_is_refused(home: Home, arguments: tuple[str, ...]) -> None:
    home.record()
    home.store.signing_path.chmod(0o644)
    assert_is_told_what_to_do(home.run(*arguments), 1, "chmod 600")


def test_key_file_that_is_none_is_told_in_a_line(home: Home) -> None:
    home.record()
    assert_is_told_what_to_do(home.run("verify", "--key", "trace.jsonl"), 1, "no Ed25519")
