# SPDX-License-Identifier: MIT
"""The only reader of environment variables: AGENTBOX_* and ./.env become one frozen Settings object.

To add a setting: (1) a field in Settings with `setting(default, parse, doc)`; (2) a row in
docs/reference/settings.md (a test compares them). To retire one: move its name to RETIRED with what replaces it.
"""

from __future__ import annotations

import os

from agentbox.errors import ConfigError
from agentbox.models import parse_allowlist
from agentbox.records import dataclass, field, fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

PREFIX = "AGENTBOX_"
BACKEND_NAMES = ("auto", "jail", "gvisor", "docker", "subprocess", "unrestricted")
RETIRED: dict[str, str] = {}

# Names that agentbox gives to the code it runs; finding them in our own environment means that we run inside one.
GUEST_NAMES = frozenset({"AGENTBOX_POLICY", "AGENTBOX_RUN_ID", "AGENTBOX_EGRESS_HOSTS"})
# Names that programs beside the server read: the examples' address of it.
CLIENT_NAMES = frozenset({"AGENTBOX_URL"})


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        import re

        if not re.fullmatch(r"\s*[+-]?[0-9][0-9_]*\s*", text):
            raise ValueError(f"must be a whole number from {low} to {high}")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}")
        return value

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}")
        return value

    return parse


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"", "0", "false", "no", "off"}:
        return False
    raise ValueError("must be 1 or 0")


def _backend(text: str) -> str:
    name = text.strip().lower()
    if name not in BACKEND_NAMES:
        import difflib

        near = difflib.get_close_matches(name, BACKEND_NAMES, 1)
        raise ValueError(f"must be one of {', '.join(BACKEND_NAMES)}" + (f"; did you mean {near[0]}?" if near else ""))
    return name


def _backends(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_backend(part) for part in text.split(",") if part.strip()))


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip().lower() for part in text.split(",") if part.strip())


def _log_level(text: str) -> str:
    level = text.strip().upper()
    if level not in {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}:
        raise ValueError("must be DEBUG, INFO, WARNING, ERROR or CRITICAL")
    return level


def _trace_runs(text: str) -> str:
    word = text.strip().lower()
    if word not in {"asked", "all"}:
        raise ValueError("must be asked or all")
    return word


def _volumes(text: str) -> str:
    word = text.strip().lower()
    if word not in {"auto", "image", "directories"}:
        raise ValueError("must be auto, image or directories")
    return word


def _path(text: str) -> Path | None:
    from pathlib import Path

    return Path(text).expanduser() if text.strip() else None


def _directory(text: str) -> str | None:
    # No Path: `run` and `verify` read this, and importing pathlib is a fifth of the start of either.
    text = text.strip()
    found = os.path.expanduser(text)
    if found.startswith("~"):
        raise ValueError(f"there is no home directory for {found.partition('/')[0]}")
    return found or None


def _allowlist(text: str) -> tuple[str, ...]:
    return parse_allowlist([part.strip() for part in text.split(",") if part.strip()])


def _dns_upstream(text: str) -> str | None:
    import ipaddress

    text = text.strip()
    if not text:
        return None
    host, port = text, "53"
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or "53"
    elif text.count(":") == 1:
        host, port = text.split(":")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError("must be the address of a DNS server, such as 192.0.2.53 or [2001:db8::53]:5353") from None
    if not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("must have a port from 1 to 65535")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _runtime(text: str) -> str:
    name = text.strip()
    if not name or not all(c.isascii() and (c.isalnum() or c in "-._") for c in name):
        raise ValueError("must be the name of a runtime that the engine knows, such as runc or runsc")
    return name


def _module_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"must be names of modules, separated by commas; {name!r} is none")
    return names


def setting(default: object, parse: Callable[[str], object], doc: str) -> Any:
    """A field of Settings that is read from AGENTBOX_<FIELD NAME>."""
    return field(default=default, metadata={"parse": parse, "doc": doc})


_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of the operator. Each field is read from AGENTBOX_ + its name in capitals."""

    host: str = setting("127.0.0.1", str.strip, "address to listen on")
    port: int = setting(8080, _integer(0, 65535), "port to listen on; 0 picks a free one")
    log_level: str = setting("INFO", _log_level, "DEBUG, INFO, WARNING, ERROR or CRITICAL")
    token: str = setting("", str.strip, "API key of a server with one caller")
    key_file: Path | None = setting(None, _path, "file of `name:key` lines, one per caller")
    allowed_hosts: tuple[str, ...] = setting((), _words, "further names that a Host header may carry, comma separated")
    sandbox_backend: str = setting(
        "auto", _backend, "auto, jail, gvisor, docker, subprocess or unrestricted; auto means jail"
    )
    allowed_backends: tuple[str, ...] = setting((), _backends, "further backends that a request may name")
    allow_unisolated: bool = setting(False, _boolean, "permit the backends that have no wall")
    default_timeout_seconds: int = setting(30, _integer(1, 86400), "wall-clock limit when a request has none")
    max_timeout_seconds: int = setting(300, _integer(1, 86400), "ceiling of timeout_seconds")
    default_memory_mb: int = setting(1024, _integer(16, 1 << 20), "memory when a request has no limit")
    max_memory_mb: int = setting(8192, _integer(16, 1 << 20), "ceiling of memory_mb")
    default_cpus: float = setting(1.0, _number(0.05, 1024), "CPUs when a request has no limit")
    max_cpus: float = setting(float(os.cpu_count() or 1), _number(0.05, 1024), "ceiling of cpus; default all")
    default_pids: int = setting(256, _integer(4, 1 << 20), "processes and threads when a request has no limit")
    max_pids: int = setting(4096, _integer(4, 1 << 20), "ceiling of pids")
    default_disk_mb: int = setting(256, _integer(1, 1 << 20), "disk when a request has no limit")
    max_disk_mb: int = setting(4096, _integer(1, 1 << 20), "ceiling of disk_mb")
    max_output_bytes: int = setting(1 << 20, _integer(1024, _GIB), "default and ceiling of max_output_bytes")
    max_total_output_bytes: int = setting(
        _GIB, _integer(1024, 1 << 50), "a run that writes more than this to one stream is ended"
    )
    max_body_bytes: int = setting(16 << 20, _integer(1024, _GIB), "largest request body")
    max_return_file_bytes: int = setting(1 << 20, _integer(0, _GIB), "largest file that return_files brings back")
    max_return_total_bytes: int = setting(8 << 20, _integer(0, _GIB), "all files of return_files together")
    max_concurrent_runs: int = setting(64, _integer(1, 1 << 16), "boxes at work at once; further runs wait")
    max_queued_runs: int = setting(2048, _integer(0, 1 << 20), "runs waiting; one more is answered 429")
    queue_runs_per_key: int = setting(0, _integer(0, 1 << 20), "runs of one key waiting; 0 is as many as all together")
    queue_timeout_seconds: float = setting(300.0, _number(0, 86400), "a run that waits longer gets 429; 0 is no limit")
    request_read_timeout_seconds: float = setting(
        10.0, _number(0.1, 3600), "a client gets this long to send its headers, and again its body"
    )
    egress_allowlist: tuple[str, ...] | None = setting(None, _allowlist, "hosts that runs may reach, comma list")
    allow_request_egress: bool = setting(False, _boolean, "without such a list, requests may name any public host")
    dns_upstream: str | None = setting(None, _dns_upstream, "DNS server IP[:port] of the gateway; else the system's")
    policy_ceiling: Path | None = setting(None, _path, "policy file that narrows every run; paths in it are the box's")
    trace_runs: str = setting("asked", _trace_runs, "asked (runs with a policy or `trace`) or all")
    trace_keep_runs: int = setting(1000, _integer(1, 1 << 24), "traces kept for each caller; the oldest go first")
    trace_keep_bytes: int = setting(_GIB, _integer(1 << 16, 1 << 50), "bytes of traces kept for each caller")
    trace_max_bytes: int = setting(64 << 20, _integer(1 << 16, 1 << 40), "a run whose trace grows beyond is ended")
    state_dir: str | Path | None = setting(None, _directory, "where snapshots and state live")
    snapshot_dir: Path | None = setting(None, _path, "where snapshots live; default STATE_DIR/snapshots")
    snapshot_max_bytes: int = setting(512 << 20, _integer(1024, 1 << 50), "largest unpacked snapshot")
    snapshot_quota_bytes: int = setting(4 * _GIB, _integer(1024, 1 << 50), "packed bytes that one caller may store")
    snapshot_ttl_seconds: int = setting(0, _integer(0, 1 << 40), "age at which a snapshot expires; 0 is never")
    max_sandboxes: int = setting(128, _integer(0, 1 << 16), "durable sandboxes of one caller at once")
    max_sandboxes_together: int = setting(512, _integer(0, 1 << 16), "durable sandboxes of all callers at once")
    sandbox_idle_seconds: int = setting(
        3600, _integer(1, 1 << 24), "a sandbox unused for so long loses its box; also the ceiling of what is asked for"
    )
    sandbox_lifetime_seconds: int = setting(
        604800, _integer(1, 1 << 24), "age at which a sandbox loses its box; also the ceiling of what is asked for"
    )
    sandbox_spool_bytes: int = setting(
        16 << 20, _integer(1024, _GIB), "output of one command that is kept, each stream"
    )
    max_upload_bytes: int = setting(4 * _GIB, _integer(1024, 1 << 50), "largest file or archive put into a sandbox")
    keeper_linger_seconds: float = setting(
        3600.0, _number(0, 1 << 24), "sandboxes without a server are put to rest after so long; their files are kept"
    )
    workspace_volumes: str = setting(
        "auto", _volumes, "where workspaces of sandboxes lie: image (with a limit for each), directories, or auto"
    )
    workspace_volumes_mb: int = setting(
        0,
        _integer(0, 1 << 30),
        "how large that image may become, 256 or more; 0 is half of what is free, 65536 at most",
    )
    pool: bool = setting(True, _boolean, "keep a warm Python for runs that have no way out")
    pool_size: int = setting(4, _integer(0, 4096), "warm boxes in stock for each key; 0 forks one when a run comes")
    pool_keys: int = setting(8, _integer(1, 1024), "keys that have stock at once; the one unused longest loses its own")
    pool_node_size: int = setting(1, _integer(0, 256), "warm boxes with Node in stock, for all keys; 0 keeps none")
    pool_modules: tuple[str, ...] = setting((), _module_names, "modules that a warm Python has imported, comma list")
    pool_runs: int = setting(1000, _integer(1, 1 << 24), "runs that share one warm Python before it is replaced")
    pool_seconds: int = setting(600, _integer(1, 1 << 24), "age in seconds at which a warm Python is replaced")
    python: str = setting("", str.strip, "Python of the boxes; also a venv's. Default: the system's")
    node: str = setting("", str.strip, "Node.js of the boxes. Default: the system's")
    bash: str = setting("", str.strip, "bash of the boxes. Default: the system's")
    gvisor_image: str = setting(
        "", str.strip, "image of gVisor boxes (`agentbox image import --gvisor`); default: the host's programs"
    )
    gvisor_pool_size: int = setting(
        1, _integer(0, 64), "gVisor boxes that have booted and wait, made after the first run or sandbox; 0: none"
    )
    docker_host: str = setting("unix:///var/run/docker.sock", str.strip, "socket of the Docker engine of this machine")
    docker_runtime: str = setting("runc", _runtime, "runtime of containers, by its name in the engine: runc or runsc")
    docker_image: str = setting(
        "", str.strip, "image of containers; default agentbox/base (`agentbox image build`), else python:3.12-slim"
    )
    docker_node_image: str = setting(
        "", str.strip, "image of containers that run JavaScript; default agentbox/base, else node:20-slim"
    )

    def state_directory(self) -> str:
        """STATE_DIR, else /var/lib/agentbox as root, else the user's XDG state directory."""
        if self.state_dir is not None:
            return os.path.abspath(self.state_dir)
        return usual_state_directory()

    def resolved_state_dir(self) -> Path:
        """The state directory as a path."""
        from pathlib import Path

        return Path(self.state_directory())

    def trace_key_dir(self) -> str:
        """Where the key that signs traces lies, and the ledger beside it."""
        return f"{self.state_directory()}/trace"

    def runs_trace_dir(self) -> Path:
        """Where the traces of runs behind the HTTP API lie, a directory for each caller."""
        return self.resolved_state_dir() / "traces"

    def resolved_snapshot_dir(self) -> Path:
        """SNAPSHOT_DIR, else a directory below the state directory."""
        return (self.snapshot_dir or self.resolved_state_dir() / "snapshots").absolute()


def usual_state_directory() -> str:
    """The state directory where no setting names one."""
    if os.geteuid() == 0:
        return "/var/lib/agentbox"
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return f"{os.path.expanduser(base)}/agentbox"


def env_name(field_name: str) -> str:
    """The environment variable of a field of Settings."""
    return PREFIX + field_name.upper()


def _dotenv(path: str | Path) -> dict[str, str]:
    """AGENTBOX_* lines of a .env file: `NAME=value`, optional `export`, optional quotes around the value."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", hint="fix the file or remove it") from error
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name = name.strip().upper()
        if not equals or not name.startswith(PREFIX):
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        else:
            import re

            value = re.split(r"\s#", value, maxsplit=1)[0].strip()
        found[name] = value
    return found


def load(environ: Mapping[str, str] | None = None, dotenv: Path | None = None) -> tuple[Settings, list[str]]:
    """Settings from `environ` (default: the process's) over `dotenv` (default: ./.env), and a list of warnings.

    Names are matched in any case. Raises ConfigError for a value that cannot be used.
    """
    source = os.environ if environ is None else environ
    values = _dotenv(dotenv if dotenv is not None else ".env")
    values |= {name.upper(): value for name, value in source.items() if name.upper().startswith(PREFIX)}
    known = {env_name(f.name): f for f in fields(Settings)}
    warnings = []
    chosen: dict[str, Any] = {}
    for name, text in sorted(values.items()):
        if name in RETIRED:
            warnings.append(f"{name} is no longer a setting: {RETIRED[name]}")
        elif name not in known:
            if name in GUEST_NAMES | CLIENT_NAMES:
                continue
            import difflib

            # The prefix is the same everywhere and would make any two names look alike.
            near = difflib.get_close_matches(name.removeprefix(PREFIX), [n.removeprefix(PREFIX) for n in known], 1)
            warnings.append(f"{name} is not a setting" + (f"; did you mean {PREFIX}{near[0]}?" if near else ""))
        else:
            try:
                chosen[known[name].name] = known[name].metadata["parse"](text)
            except (ValueError, OverflowError) as error:
                shown = "(hidden)" if name in {"AGENTBOX_TOKEN"} else repr(text[:80])
                raise ConfigError(
                    f"{name}={shown} cannot be used: {error}", hint=f"{known[name].metadata['doc']}"
                ) from error
    settings = Settings(**chosen)
    for low, high in (
        ("default_timeout_seconds", "max_timeout_seconds"),
        ("default_memory_mb", "max_memory_mb"),
        ("default_cpus", "max_cpus"),
        ("default_pids", "max_pids"),
        ("default_disk_mb", "max_disk_mb"),
    ):
        if getattr(settings, low) > getattr(settings, high) and (low in chosen or high in chosen):
            if low in chosen and high in chosen:
                raise ConfigError(
                    f"{env_name(low)}={getattr(settings, low)} is above {env_name(high)}={getattr(settings, high)}",
                    hint="lower the default or raise the ceiling",
                )
            warnings.append(f"{env_name(low)} is held to {env_name(high)}={getattr(settings, high)}")
    return settings, warnings


def server_of_clients() -> tuple[str, str]:
    """AGENTBOX_URL and AGENTBOX_TOKEN: the server that clients on this machine speak with, and as whom; "" for what is
    not said. Raises ConfigError for a ./.env that cannot be read."""
    found = _dotenv(".env") | os.environ
    return found.get("AGENTBOX_URL", "").strip(), found.get("AGENTBOX_TOKEN", "").strip()


def process_environment() -> dict[str, str]:
    """The environment of this process, for the backend that hands it to guests whole."""
    return dict(os.environ)
