"""Where a stack keeps its files, and what it writes down of itself."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from sandherd.bus.identity import write_secret
from sandherd.private_files import make_directory

STOP_SECONDS: Final = 60.0
"""How long ending the parts of a stack in order may take, beside its sandboxes."""


@dataclass(frozen=True)
class Home:
    """The directory of one stack (`SANDHERD_HOME`)."""

    path: Path

    @property
    def logs(self) -> Path:
        """One log for each process."""
        return self.path / "logs"

    @property
    def sandboxes(self) -> Path:
        """A directory for each sandbox of the process runtime; what is in them is the spawner's."""
        return self.path / "sandboxes"

    @property
    def run(self) -> Path:
        """What is true only while the stack runs."""
        return self.path / "run"

    @property
    def lock(self) -> Path:
        """Held by the supervisor for as long as it lives."""
        return self.run / "lock"

    @property
    def state(self) -> Path:
        """What runs, for `up`, `down` and `status`."""
        return self.run / "state.json"

    @property
    def context(self) -> Path:
        """Where the stack is, for clients."""
        return self.path / "context.json"

    def make(self) -> None:
        """Make the directories that every stack has."""
        for directory in (self.path, self.logs, self.run, self.sandboxes):
            make_directory(directory)


class Phase(StrEnum):
    """How far a stack is."""

    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    """All was ready, and some part is not any more. Never written down: it is found by looking."""
    UNSUPERVISED = "unsupervised"
    """Parts run, and the supervisor that held them does not. Never written down either."""
    STOPPING = "stopping"
    FAILED = "failed"
    STOPPED = "stopped"


class ProcessRecord(BaseModel):
    """A process as it was started. `mark` tells it from a later process of the same number."""

    model_config = ConfigDict(frozen=True)

    pid: int
    mark: str
    restarts: int = 0
    http: str | None = None
    problem: str | None = None
    """Which exhausted resource ended the process before this one, and when."""

    @property
    def alive(self) -> bool:
        """Whether that very process runs still."""
        return mark_of(self.pid) == self.mark


class StackRecord(BaseModel):
    """What a supervisor writes down. `processes` are in the order in which they were started."""

    model_config = ConfigDict(frozen=True)

    phase: Phase
    supervisor: ProcessRecord
    processes: dict[str, ProcessRecord] = {}
    nats_url: str | None = None
    database_url: str | None = None
    error: str | None = None
    stop_seconds: float = STOP_SECONDS
    """How long its supervisor may take to end everything in order."""


def read_record(home: Home) -> StackRecord | None:
    """What the last supervisor wrote, or None if there is nothing to be read."""
    try:
        return StackRecord.model_validate_json(home.state.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def write_record(home: Home, record: StackRecord) -> None:
    """Write it down, whole or not at all."""
    write_secret(home.state, record.model_dump_json(indent=2) + "\n")


def read_context(home: Home) -> dict[str, Any]:
    """What clients are told; empty before the first start."""
    try:
        found = json.loads(home.context.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def noted_config(home: Home) -> Path | None:
    """The settings file that the stack was started with which nobody has ended since; None if it is not there."""
    noted = read_context(home).get("config")
    path = Path(noted) if isinstance(noted, str) and noted else None
    return path if path and path.is_file() else None


def forget_config(home: Home) -> None:
    """Note that the stack was ended: the next one is started with what is given then."""
    context = read_context(home)
    if context.pop("config", None) is not None:
        write_context(home, context)


def write_context(home: Home, context: Mapping[str, Any]) -> None:
    """Tell clients this, whole or not at all."""
    write_secret(home.context, json.dumps(context, indent=2) + "\n")


def mark_of(pid: int) -> str | None:
    """What tells this process from every other of the same number: the machine's start and its own (proc(5)).

    None if there is none, or if it has ended and only waits to be reaped.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in {"Z", "X"} else f"{boot}/{fields[19]}"


def record_of(pid: int, *, restarts: int = 0, http: str | None = None, problem: str | None = None) -> ProcessRecord:
    """A running process, to be written down."""
    return ProcessRecord(pid=pid, mark=mark_of(pid) or "ended", restarts=restarts, http=http, problem=problem)


def ourselves() -> ProcessRecord:
    """The process that asks."""
    return record_of(os.getpid())
