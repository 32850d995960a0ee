# SPDX-License-Identifier: MIT
"""Runs a Python script as root in a virtual machine with cgroup v2, user namespaces, seccomp and Landlock.

    python tests/vm/run.py [--timeout SECONDS] [--memory-mb N] SCRIPT [ARGUMENT...]
    python tests/vm/run.py --get-kernel

The guest sees the host's files read-only at the same paths and this repository's src/ on its module path; it has no
network. README.md says what has to be installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
if __package__ in (None, ""):
    sys.path.insert(0, str(REPOSITORY))

from tests.vm import initramfs, unpacked  # noqa: E402

MACHINE = platform.machine()
EMULATOR = f"qemu-system-{MACHINE}"
KERNEL_PACKAGE = {"x86_64": "linux-image-amd64", "aarch64": "linux-image-arm64"}.get(MACHINE, "linux-image")
# A kvm that never gets this far (some nested ones spin) is given up for emulation.
KVM_BOOT_SECONDS = 25
CONSOLE = {"x86_64": "ttyS0", "aarch64": "ttyAMA0"}.get(MACHINE, "ttyS0")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel image and the directory of its modules."""

    image: Path
    modules: Path


@dataclass(frozen=True, slots=True)
class Result:
    """How the script ended; `exit_code` is None when the machine did not come to the end (see `console`)."""

    exit_code: int | None
    stdout: str
    stderr: str
    console: str
    seconds: float
    accelerator: str


def cache() -> Path:
    """Return the directory for the RAM disk and a fetched kernel; made if absent."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentbox-test-vm"
    base.mkdir(parents=True, exist_ok=True)
    return base


def find_kernel() -> Kernel | None:
    """Return the newest kernel with loadable 9p: an installed one, or one that --get-kernel fetched."""
    for root in (Path("/"), cache() / "kernel"):
        for image in sorted(root.glob("boot/vmlinuz-*"), reverse=True):
            modules = root / "lib/modules" / image.name.removeprefix("vmlinuz-")
            if os.access(image, os.R_OK) and any(modules.rglob("9pnet_virtio.ko*")):
                return Kernel(image, modules)
    return None


def get_kernel() -> Kernel:
    """Fetch a kernel with apt into the cache, without installing it on the host."""
    depends = subprocess.run(
        ["apt-cache", "depends", KERNEL_PACKAGE], check=True, capture_output=True, text=True
    ).stdout
    package = next(line.split()[-1] for line in depends.splitlines() if "Depends: linux-image" in line)
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        subprocess.run(["apt-get", "download", package], check=True, cwd=directory, stdout=sys.stderr)
        (archive,) = Path(directory).glob("*.deb")
        shutil.rmtree(cache() / "kernel", ignore_errors=True)
        subprocess.run(["dpkg", "-x", archive, cache() / "kernel"], check=True)
    kernel = find_kernel()
    if kernel is None:
        raise RuntimeError(f"{package} holds no kernel with a 9p module")
    return kernel


def why_not() -> str | None:
    """Say what is missing to run the virtual machine, or None."""
    if shutil.which(EMULATOR) is None:
        return f"{EMULATOR} is not installed (tests/vm/README.md)"
    if find_kernel() is None:
        return f"no kernel with 9p modules: install {KERNEL_PACKAGE} or run `python tests/vm/run.py --get-kernel`"
    if not initramfs.PYTHON.exists():
        return f"{initramfs.PYTHON} does not exist"
    return None


def run(script: Path, arguments: tuple[str, ...] = (), *, timeout: float = 300, memory_mb: int = 1024) -> Result:
    """Boot, run `script` with the system's Python, power off. `timeout` counts seconds, boot included.

    Raises RuntimeError when something is missing on this host.
    """
    return run_all([(script, arguments)], timeout=timeout, memory_mb=memory_mb)[0]


def run_all(
    scripts: Sequence[tuple[Path, tuple[str, ...]]], *, timeout: float = 300, memory_mb: int = 1024
) -> list[Result]:
    """Boot once and run scripts one after the other, as `run` does with one; `timeout` is for all of them."""
    problem = why_not()
    kernel = find_kernel()
    if problem or kernel is None:
        raise RuntimeError(problem)
    disk = _ram_disk(kernel)
    image = unpacked.image(kernel.image, cache())
    verdict = cache() / "kvm-does-not-boot"
    accelerators = ["tcg"]
    if os.access("/dev/kvm", os.R_OK | os.W_OK) and _text(verdict) != platform.release():
        accelerators.insert(0, "kvm")
    for accelerator in accelerators:
        results = _boot(image, disk, accelerator, _request(scripts), len(scripts), timeout, memory_mb)
        if results is not None:
            return results
        verdict.write_text(platform.release(), encoding="utf-8")
    raise RuntimeError("unreachable: emulation always returns a result")


def _request(scripts: Sequence[tuple[Path, tuple[str, ...]]]) -> str:
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "AGENTBOX_TEST_IN_VM": "1",
    }
    programs = [
        {
            "name": str(number),
            "argv": [str(initramfs.PYTHON), str(script.resolve()), *arguments],
            "env": environment,
            "cwd": "/tmp",
        }
        for number, (script, arguments) in enumerate(scripts)
    ]
    return json.dumps({"programs": programs, "repository": str(REPOSITORY)})


def _ram_disk(kernel: Kernel) -> Path:
    sources = [Path(__file__).with_name(name) for name in ("guest_init.py", "initramfs.py")]
    parts = [path.read_bytes() for path in sources] + [str(kernel).encode(), str(kernel.image.stat().st_mtime).encode()]
    parts.append(str(initramfs.PYTHON.stat().st_mtime).encode())
    disk = cache() / f"initramfs-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}"
    if not disk.exists():
        for old in cache().glob("initramfs-*"):
            old.unlink(missing_ok=True)
        initramfs.build(disk, kernel.modules)
    return disk


def _boot(
    image: Path, disk: Path, accelerator: str, request: str, count: int, timeout: float, memory_mb: int
) -> list[Result] | None:
    """Run the machine once; None when hardware virtualisation never got to the first program."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agentbox-vm-") as directory:
        exchange = Path(directory)
        (exchange / "request.json").write_text(request, encoding="utf-8")
        command = _command(image, disk, accelerator, exchange, memory_mb)
        with (
            (exchange / "emulator").open("wb") as talk,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=talk, stderr=talk) as machine,
        ):
            gave_up = not _wait(machine, exchange, accelerator, started, timeout)
            machine.kill()
        booted = (exchange / "booted").exists()
        if accelerator == "kvm" and not booted:
            return None
        console = (
            _text(exchange / "emulator")
            + _text(exchange / "console")
            + (f"\nvm: stopped after {timeout} s" if gave_up else "")
        )
        return [
            Result(
                exit_code=int(code) if (code := _text(exchange / f"{number}.exit_code")) else None,
                stdout=_text(exchange / f"{number}.stdout"),
                stderr=_text(exchange / f"{number}.stderr"),
                console=console,
                seconds=time.monotonic() - started,
                accelerator=accelerator,
            )
            for number in range(count)
        ]


def _wait(machine: subprocess.Popen[bytes], exchange: Path, accelerator: str, started: float, timeout: float) -> bool:
    """Wait for the machine to power off; False when it ran out of time, for booting or in all."""
    while time.monotonic() - started < timeout:
        try:
            machine.wait(0.05)
        except subprocess.TimeoutExpired:
            slow = time.monotonic() - started > KVM_BOOT_SECONDS
            if accelerator == "kvm" and slow and not (exchange / "booted").exists():
                return False
        else:
            return True
    return False


def _command(image: Path, disk: Path, accelerator: str, exchange: Path, memory_mb: int) -> list[str]:
    share = "local,security_model=none,multidevs=remap"
    cpu = "host" if accelerator == "kvm" else "max"
    multi = ["-accel", "kvm"] if accelerator == "kvm" else ["-accel", "tcg,thread=multi"]
    board = ["-machine", "virt"] if MACHINE == "aarch64" else []
    return [
        *(EMULATOR, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", *board, *multi),
        *("-cpu", cpu, "-smp", "2", "-m", str(memory_mb)),
        *("-kernel", str(image), "-initrd", str(disk)),
        *("-append", f"console={CONSOLE} panic=-1 loglevel=4 mitigations=off rdinit=/init"),
        *("-serial", f"file:{exchange / 'console'}"),
        *("-fsdev", f"{share},id=host,path=/,readonly=on", "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
        *("-fsdev", f"{share},id=exchange,path={exchange}"),
        *("-device", "virtio-9p-pci,fsdev=exchange,mount_tag=exchange"),
    ]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def main() -> int:
    """Run the command line; the exit code is the script's, 70 when the machine failed, 69 when a part is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--get-kernel", action="store_true", help="fetch a kernel with apt into the cache")
    parser.add_argument("--timeout", type=float, default=300, help="seconds, boot included")
    parser.add_argument("--memory-mb", type=int, default=1024)
    parser.add_argument("script", nargs="?", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.get_kernel:
        print(get_kernel().image)
        return 0
    if options.script is None:
        parser.error("a script is needed")
    problem = why_not()
    if problem:
        print(f"vm: {problem}", file=sys.stderr)
        return 69
    result = run(options.script, tuple(options.arguments), timeout=options.timeout, memory_mb=options.memory_mb)
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    if result.exit_code is None:
        sys.stderr.write(result.console[-4000:])
    print(f"vm: {result.accelerator}, {result.seconds:.1f} s", file=sys.stderr)
    return 70 if result.exit_code is None else result.exit_code


if __name__ == "__main__":
    sys.exit(main())
