# SPDX-License-Identifier: MIT
"""A durable gVisor box: its agent's stream, its workspace on the host, what its root may, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from agentbox import Sandbox
from agentbox.errors import SandboxGoneError
from agentbox.isolation.backends.gvisor.durable import GvisorDurable, Kind, stock_of
from agentbox.isolation.durable import DurableBox, DurableRequest, agent_commands
from agentbox.isolation.facilities import Facilities, GvisorOptions
from agentbox.models import Confinement, Limits
from agentbox.records import replace
from agentbox.workspace.volume_grounds import Directories
from agentbox.workspace.volumes import Volumes

LIMITS = Limits(timeout_seconds=20, memory_mb=512, cpus=1.0, pids=64, disk_mb=16, max_output_bytes=1 << 16)
END = b"=end=\n"


@contextlib.asynccontextmanager
async def box_around(workspace: Path, user: str = "agent") -> AsyncIterator[DurableBox]:
    facilities = await Facilities.open()
    facilities.gvisor = GvisorOptions(pool_size=0)
    try:
        box = await GvisorDurable(facilities).launch_durable(
            DurableRequest("test", str(workspace), Confinement(LIMITS), user=user)
        )
        try:
            yield box
        finally:
            await box.destroy()
    finally:
        await facilities.close()


async def said(box: DurableBox, script: str) -> str:
    """What a shell in the box says to a script."""
    stream = await box.open_stream(["/bin/sh"], {}, "", "/work")
    try:
        await stream.write(f"exec 2>&1\n{script}\nprintf '{END.decode().strip()}\\n'\n".encode())
        text = b""
        async with asyncio.timeout(60):
            while not text.endswith(END):
                piece = await stream.read()
                assert piece, text
                text += piece
        return text.removesuffix(END).decode()
    finally:
        await stream.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await work()

    asyncio.run(main())


def test_workspace_is_the_hosts_and_what_the_box_makes_belongs_to_its_owner(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from the host")

    async def work() -> None:
        async with box_around(tmp_path) as box:
            assert await said(box, "cat given; echo; id -un; echo made > /root/made; chmod 4755 made; pwd") == (
                "from the host\nagent\n/work\n"
            )
            (tmp_path / "later").write_text("seen at once")
            assert await said(box, "cat later") == "seen at once"

    run(work)
    found = (tmp_path / "made").stat()
    assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
    assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID)


def test_socket_of_the_host_in_a_workspace_is_not_reached_and_own_ones_are(tmp_path: Path) -> None:
    connect = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print('connected')"
    listen = (
        "import socket; l = socket.socket(socket.AF_UNIX); l.bind('/work/own'); l.listen()\n"
        "c = socket.socket(socket.AF_UNIX); c.connect('/work/own'); print('own')"
    )

    async def work() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "hosts"))
            listener.listen()
            os.chmod(tmp_path / "hosts", 0o777)
            async with box_around(tmp_path) as box:
                assert "Error" in await said(box, f'python3 -c "{connect}" /work/hosts')
                assert await said(box, f'python3 -c "{listen}"') == "own\n"

    run(work)


def test_nothing_inside_ends_the_box_and_a_new_agent_finds_it_swept(tmp_path: Path) -> None:
    async def work() -> None:
        async with box_around(tmp_path) as box:
            await said(box, "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000' &) ; sleep 1000 &")
            killed = await said(box, "kill -9 1; ps ax | grep -c '[s]leep 1000'")
            assert killed.splitlines()[-1] == "0"
            assert "ermitted" in killed
            assert await box.alive()
            stream = await box.open_stream(["/bin/sh"], {}, "", "/work")
            await stream.write(b"kill -9 -1; kill -9 $$\n")
            async with asyncio.timeout(30):
                while await stream.read():
                    pass
            await stream.close()
            assert await said(box, "echo here still") == "here still\n"

    run(work)


def test_root_of_a_box_may_install_and_is_nobody_outside(tmp_path: Path) -> None:
    async def work() -> None:
        async with box_around(tmp_path, "root") as box:
            found = await said(
                box,
                "id -u; touch f; chown 0:0 f; grep CapEff /proc/self/status; mount -t tmpfs x /tmp || echo no mount; "
                "touch /usr/bin/agentbox-made-inside && echo installed; cat /proc/1/environ >/dev/null; "
                "kill -9 1 || echo no kill",
            )
            assert found.startswith("0\n")
            assert "CapEff:\t00000000000000cb" in found
            assert all(word in found for word in ("no mount", "installed", "no kill"))
            assert not os.path.lexists("/usr/bin/agentbox-made-inside")

    run(work)
    assert (tmp_path / "f").stat().st_uid == os.geteuid()


def test_box_that_reached_its_memory_is_gone_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("work")

    async def work() -> None:
        async with box_around(tmp_path) as box:
            stream = await box.open_stream(["/usr/bin/python3", "-c", "x = bytearray(3 << 30)"], {}, "", "/work")
            async with asyncio.timeout(60):
                while await stream.read():
                    pass
            await stream.close()
            while await box.alive():
                await asyncio.sleep(0.01)
            assert "memory" in await box.why_gone()

    run(work)
    assert (tmp_path / "kept").read_text() == "work"


@pytest.mark.parametrize("empty", [True, False])
def test_box_in_stock_takes_the_place_of_an_empty_workspace(tmp_path: Path, empty: bool) -> None:
    environment = {"LANG": "C.UTF-8"}
    volumes = Volumes(tmp_path, Directories(), tmp_path / "volumes", "")

    async def work() -> None:
        facilities = await Facilities.open()
        try:
            backend = GvisorDurable(facilities)
            boxes = []
            for name in ("first", "second"):
                workspace = volumes.new(name, 0).path
                if name == "second" and not empty:
                    (workspace / "kept").write_text("x")
                request = DurableRequest(name, str(workspace), Confinement(LIMITS), environment=environment)
                boxes.append(await backend.launch_durable(replace(request, spares=volumes.spares(0))))
                stock = stock_of(facilities, backend._make)
                await stock.filled()
            assert stock.waiting == 1
            assert [box.live.start_kind for box in boxes] == ["cold", "made" if empty else "cold"]  # type: ignore[attr-defined]
            stream = await boxes[1].open_stream(agent_commands()[0], environment, "", "/work")
            assert (await stream.read())[4] == 65
            await stream.close()
            await said(boxes[1], "echo x > made")
            assert "made" in os.listdir(workspace)
            for box in boxes:
                await box.destroy()
        finally:
            await facilities.close()
        assert sorted(os.listdir(workspace.parent)) == ["first", "second"]

    run(work)


def test_box_of_an_image_shows_its_programs_and_none_of_the_hosts(tmp_path: Path) -> None:
    root = tmp_path / "images" / "small" / "rootfs"
    listed = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    for path in ("/bin/sh", *re.findall(r"(/\S+) \(0x", listed)):
        # Links of the host's own (/lib, /lib64) lead below /usr in no small image.
        where = root / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, where)
    (root / "etc").mkdir()
    (root / "etc" / "mark").write_text("of the image")
    workspace = tmp_path / "work"
    workspace.mkdir()

    async def work() -> None:
        facilities = await Facilities.open()
        facilities.gvisor = GvisorOptions(0, str(tmp_path / "images"))
        try:
            box = await GvisorDurable(facilities).launch_durable(
                DurableRequest("test", str(workspace), Confinement(LIMITS), image="small")
            )
            try:
                found = await said(box, "read mark < /etc/mark; echo $mark; echo /usr/bin/*; echo x > made")
                assert found == "of the image\n/usr/bin/*\n"
            finally:
                await box.destroy()
        finally:
            await facilities.close()

    run(work)
    assert (workspace / "made").read_text() == "x\n"


def test_kinds_of_boxes_differ_by_what_their_agents_were_given(tmp_path: Path) -> None:
    spares = Volumes(tmp_path, Directories(), tmp_path / "volumes", "").spares(0)
    one, other = (
        Kind(Confinement(LIMITS), "agent", frozenset({"A": value}.items()), spares.key, spares) for value in ("1", "2")
    )
    assert one != other


def test_root_of_a_box_has_others_beside_it_and_what_they_made_is_theirs_in_the_next_box(tmp_path: Path) -> None:
    def deeds(sandbox: Sandbox) -> None:
        assert sandbox.exec(["whoami"]).stdout == b"root\n"
        assert sandbox.exec("touch /usr/mine && mkdir /home/new && chown 4321 /home/new").exit_code == 0
        assert sandbox.exec("id -u; touch /home/new/x /tmp/x", user="4321").stdout == b"4321\n"

    tmp_path.chmod(0o755)
    with Sandbox(backend="gvisor", user="root", workspace=tmp_path) as sandbox:
        deeds(sandbox)
        sandbox.exec("chown agent /work && echo root > /work/roots && chmod 600 /work/roots")
        assert sandbox.exec("echo x > made; cat roots", user="agent").exit_code == 1
        sandbox.reset()
        deeds(sandbox)
        listed = sandbox.exec("stat -c '%U %n' . made roots").stdout
        assert listed == b"agent .\nagent made\nroot roots\n"
        assert sandbox.exec("echo y >> made && cat made", user="agent").stdout == b"x\ny\n"
    assert (tmp_path / "roots").stat().st_uid == 0


def test_box_that_a_fork_bomb_ended_says_so_and_its_work_is_kept(tmp_path: Path) -> None:
    # A root, whose processes gVisor does not count, gets there sooner.
    with Sandbox(backend="gvisor", user="root", pids_limit=8, workspace=tmp_path) as sandbox:
        sandbox.files.write("kept", "work")
        bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
        assert sandbox.exec(["python3", "-c", bomb], timeout=100).exit_code == 137
        with pytest.raises(SandboxGoneError, match="a fork bomb as a rule"):
            sandbox.exec("echo hello")
        assert sandbox.shell_exec("echo hello").startswith("ERROR: sandbox is gone: too many processes")
        sandbox.reset()
        assert sandbox.exec("cat kept").stdout == b"work"
