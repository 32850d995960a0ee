# SPDX-License-Identifier: MIT
"""Boxes that live at the same time, also of one user, know nothing of each other and leave nothing to the next."""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.adversarial.conftest import Jail
from tests.adversarial.escape.posture import Posture, processes_with
from tests.adversarial.guests import execute, output_of, running

NEIGHBOUR = Path(__file__).with_name("guest") / "neighbour.py"


def test_a_guest_cannot_reach_anything_of_a_run_beside_it(jail: Jail) -> None:
    code = NEIGHBOUR.read_text()
    env = {"MARK": f"mark{secrets.token_hex(6)}", "KEY": str(secrets.randbelow(1 << 30) + 1)}
    with running(jail.server, code, args=["offer", env["MARK"]], env=env):
        assert output_of(jail.server, code, args=["look"], env=env) == "nothing\n"
        assert processes_with(env["MARK"]), "the first run must have been there all along"


def test_a_guest_cannot_find_what_an_earlier_run_left(jail: Jail) -> None:
    write = (
        "import os\nfor d in ('/work', '/tmp', '/dev/shm'):\n    open(d + '/left', 'w').write('x')\nprint('written')"
    )
    assert output_of(jail.server, write) == "written\n"
    look = "import os\nprint([d for d in ('/work', '/tmp', '/dev/shm') if os.listdir(d) not in ([], ['main.py'])])"
    assert output_of(jail.server, look) == "[]\n"


def test_a_guest_cannot_load_a_snapshot_by_a_path(jail: Jail) -> None:
    planted = jail.server.state_dir / "evil.tar.gz"
    planted.write_bytes(b"")
    for name in ("../evil", "..%2fevil", "/etc/passwd", str(planted), "evil"):
        with jail.server.client() as client:
            response = client.post("/v1/run", json={"code": "print(1)", "snapshot_id": name})
        assert response.status_code in (400, 404, 422), (name, response.text)


def test_a_guest_sees_other_ids_than_those_of_the_run_beside_it_as_root(jail: Jail) -> None:
    """Inside everyone is uid 1000; on the host two boxes of root never share an id (an ordinary user has but one)."""
    code = "import time\nprint('ready', flush=True)\ntime.sleep(60)"
    marks = [f"posture-{secrets.token_hex(6)}" for _ in range(2)]
    with running(jail.server, code, args=[marks[0]]), running(jail.server, code, args=[marks[1]]):
        uids = {Posture.of(mark).status["Uid"].split()[0] for mark in marks}
    assert len(uids) == (2 if jail.standing.uid == 0 else 1)
    assert "0" not in uids


def test_a_guest_cannot_hide_a_second_program_behind_the_end_of_the_first(jail: Jail) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('done')"
    result = execute(jail.server, code)
    assert (result["outcome"], result["stdout"]) == ("exited", "done\n")
