"""The settings a worker starts with: its identity, its directories, and the task of its agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandherd.contracts.names import UnsafeNameError, safe_name
from sandherd.contracts.repositories import MOUNTED

_HEARTBEAT: Final = 30.0
_STOP_GRACE: Final = 10.0
_LOOPBACK: Final = "127.0.0.1"
_MIB: Final = 1024 * 1024
_SPOOL_MB: Final = 512
_PORTS: Final = range(1024, 65_536)
_WORK_BYTES: Final = 64 * _MIB


class AssignmentError(ValueError):
    """A variable that is missing or invalid. The message names it."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The worker's identity and settings, read from environment variables. Durations are in seconds."""

    project: str
    sandbox: str
    task: str | None
    """The task's id. None if the sandbox was created without a task: no agent runs in it."""
    attempt: int
    fence: int
    nats_url: str
    credentials: Path | None
    """The credentials file for joining; None for a broker without credentials."""
    grant: str | None = field(repr=False)
    """The first credential, as the JSON of a `CredentialGrant`; None if it has to be requested."""
    task_file: Path
    state_dir: Path
    work_dir: Path
    place: str
    """The mark that every process of this sandbox carries; unique among the sandboxes on this host."""
    traceparent: str | None
    heartbeat_interval: float
    stop_grace: float
    """The time between the runtime's SIGTERM and SIGKILL."""
    previous_file: Path | None
    """The file that describes the previous attempt (`contracts.offers.Previous`); None for a first attempt."""
    previous_dir: Path | None
    """The directory where the previous attempt's files are placed for the agent."""
    max_work_bytes: int
    """The largest archive of the work tree, in bytes, that is stored after a failed attempt; 0 stores none."""
    spool_limit: int
    """The size limit of the spool, in bytes."""
    log_level: str
    lost_signal: int | None
    """The signal that ended the lost worker that this one recovers, if the runtime knows it."""
    lost_for_memory: bool
    """Whether the kernel's OOM killer ended the lost worker."""
    cgroup: Path | None
    """The sandbox's cgroup, if the runtime exposes it."""
    toolchains: Path | None
    """The directory with the SDKs of agents, each under its kind's name; None if there are none."""
    listen: str
    """The address on which a server in this sandbox listens: loopback, or an address reachable from outside."""
    repository: Path
    """The directory where the mirror of the task's repository is mounted, if there is one."""
    ports: tuple[int, ...]
    """The only ports that are reachable; empty means any."""
    inherited: Mapping[str, str]
    """The worker's variables passed on to the agent: `PATH`, home, locale, temporary directory, time zone."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Assignment":
        """The assignment in these variables. Raises `AssignmentError`, which names the wrong variable."""
        return cls(
            project=_name(environ, "SANDHERD_PROJECT"),
            sandbox=_name(environ, "SANDHERD_SANDBOX_ID"),
            task=_name(environ, "SANDHERD_TASK_ID") if environ.get("SANDHERD_TASK_ID") else None,
            attempt=int(_number(environ, "SANDHERD_ATTEMPT", 1)),
            fence=int(_number(environ, "SANDHERD_FENCE", 1)),
            nats_url=_text(environ, "NATS_URL"),
            credentials=_path(environ, "SANDHERD_CREDENTIALS"),
            grant=environ.get("SANDHERD_GRANT") or None,
            task_file=Path(_text(environ, "SANDHERD_TASK_FILE")),
            state_dir=Path(_text(environ, "SANDHERD_STATE_DIR")),
            work_dir=Path(_text(environ, "SANDHERD_WORK_DIR")),
            place=environ.get("SANDHERD_PLACE") or _text(environ, "SANDHERD_STATE_DIR"),
            traceparent=environ.get("TRACEPARENT") or None,
            heartbeat_interval=_number(environ, "HEARTBEAT_INTERVAL", _HEARTBEAT),
            stop_grace=_number(environ, "SANDHERD_STOP_GRACE", _STOP_GRACE),
            previous_file=_path(environ, "SANDHERD_PREVIOUS_FILE"),
            previous_dir=_path(environ, "SANDHERD_PREVIOUS_DIR"),
            max_work_bytes=_bytes(environ, "SANDHERD_MAX_WORK_BYTES", _WORK_BYTES),
            spool_limit=int(_number(environ, "SANDHERD_SPOOL_MB", _SPOOL_MB) * _MIB),
            log_level=environ.get("SANDHERD_LOG_LEVEL", "info"),
            lost_for_memory=bool(environ.get("SANDHERD_LOST_FOR_MEMORY")),
            lost_signal=int(_number(environ, "SANDHERD_LOST_SIGNAL", 0)) or None,
            cgroup=_path(environ, "SANDHERD_CGROUP"),
            toolchains=_path(environ, "SANDHERD_TOOLCHAINS"),
            listen=environ.get("SANDHERD_LISTEN") or _LOOPBACK,
            repository=_path(environ, "SANDHERD_REPOSITORY") or Path(MOUNTED),
            ports=_ports(environ, "SANDHERD_PORTS"),
            inherited={name: environ[name] for name in _INHERITED if name in environ},
        )

    @property
    def source(self) -> str:
        """The source of all events of this worker."""
        return f"/sandherd/sandbox/{self.sandbox}"

    @property
    def inbox(self) -> str:
        """The prefix of the worker's reply subjects."""
        return f"_INBOX_{self.sandbox}"


_INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise AssignmentError(f"{name} is not set; a worker is started by a runtime, which sets it")
    return value


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _name(environ: Mapping[str, str], name: str) -> str:
    try:
        return safe_name(_text(environ, name), name)
    except UnsafeNameError as error:
        raise AssignmentError(str(error)) from None


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(environ.get(name) or default)
    except ValueError:
        raise AssignmentError(f"{name} is {environ[name][:40]!r}, which is not a number") from None
    if not (0 < value < float("inf") or value == default):
        raise AssignmentError(f"{name} is {value}; it must be greater than 0")
    return value


def _bytes(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal():
        raise AssignmentError(f"{name} is {text[:40]!r}, which is not a number of bytes")
    return int(text)


def _ports(environ: Mapping[str, str], name: str) -> tuple[int, ...]:
    ports = [port.strip() for port in environ.get(name, "").split(",") if port.strip()]
    if not all(port.isdecimal() and int(port) in _PORTS for port in ports):
        raise AssignmentError(f"{name} is {environ[name][:40]!r}; it must be ports above 1023, comma-separated")
    return tuple(map(int, ports))
