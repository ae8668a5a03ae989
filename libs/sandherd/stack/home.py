"""The paths of a stack's files, and the records of its processes and addresses."""

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
from sandherd.processes import ProcessId, find
from sandherd.safe_home import check_home

STOP_SECONDS: Final = 60.0
"""How long ending the parts of a stack in order may take, in seconds, without its sandboxes."""


@dataclass(frozen=True)
class Home:
    """The directory of one stack (`SANDHERD_HOME`)."""

    path: Path

    @property
    def logs(self) -> Path:
        """The directory with one log for each process."""
        return self.path / "logs"

    @property
    def sandboxes(self) -> Path:
        """The directory with one directory for each sandbox of the process runtime. The spawner manages them."""
        return self.path / "sandboxes"

    @property
    def artifacts(self) -> Path:
        """The directory of the artifact store, unless the settings name another."""
        return self.path / "artifacts"

    @property
    def run(self) -> Path:
        """The directory of files that are valid only while the stack runs."""
        return self.path / "run"

    @property
    def lock(self) -> Path:
        """The lock that the supervisor holds while it runs."""
        return self.run / "lock"

    @property
    def state(self) -> Path:
        """The record of the stack's processes, for `up`, `down` and `status`."""
        return self.run / "state.json"

    @property
    def identity(self) -> Path:
        """The herd's keys and credentials."""
        return self.path / "identity"

    @property
    def watcher_credentials(self) -> Path:
        """The file with the credential that may request the health of nats-servers; `stack.broker` writes it."""
        return self.identity / "root" / "watcher.creds"

    @property
    def context(self) -> Path:
        """The addresses of the stack, for clients."""
        return self.path / "context.json"

    @property
    def api_port(self) -> Path:
        """The file with the port of the HTTP API."""
        return self.path / "run" / "api.port"

    @property
    def api_url(self) -> str | None:
        """The address of the HTTP API; None if it was never served."""
        try:
            return f"http://127.0.0.1:{int(self.api_port.read_text())}/api/v1"
        except (OSError, ValueError):
            return None

    def make(self) -> None:
        """Create the directories that every stack has. Raises `UnsafeHomeError` before anything is written."""
        check_home(self.path)
        for directory in (self.path, self.logs, self.run, self.sandboxes, self.artifacts):
            make_directory(directory)


class StackPhase(StrEnum):
    """The phase of a stack."""

    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    """All parts were ready, and one no longer is. It is never recorded, but determined by checking the parts."""
    UNSUPERVISED = "unsupervised"
    """Parts are running, but not their supervisor. It is never recorded either."""
    STOPPING = "stopping"
    FAILED = "failed"
    STOPPED = "stopped"


class ProcessRecord(BaseModel):
    """The record of a started process. `mark` distinguishes it from a later process with the same pid."""

    model_config = ConfigDict(frozen=True)

    pid: int
    mark: str
    restarts: int = 0
    http: str | None = None
    problem: str | None = None
    """The exhausted resource that ended the previous process of this part, and the time."""

    @property
    def running(self) -> ProcessId | None:
        """The recorded process; None if it has ended, also if it is a zombie."""
        process = find(self.pid)
        return process if process is not None and process.mark == self.mark and process.alive() else None

    @property
    def alive(self) -> bool:
        """Whether the recorded process is still running."""
        return self.running is not None


class StackRecord(BaseModel):
    """The record that a supervisor writes of its stack. `processes` are in the order in which they were started."""

    model_config = ConfigDict(frozen=True)

    phase: StackPhase
    supervisor: ProcessRecord
    processes: dict[str, ProcessRecord] = {}
    nats_url: str | None = None
    database_url: str | None = None
    error: str | None = None
    stop_seconds: float = STOP_SECONDS
    """The maximum time in which the supervisor ends everything in order, in seconds."""


def read_record(home: Home) -> StackRecord | None:
    """The last supervisor's record, or None if there is no readable one."""
    try:
        return StackRecord.model_validate_json(home.state.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def running_supervisor(home: Home) -> ProcessRecord | None:
    """The recorded supervisor, if it is running."""
    record = read_record(home)
    return record.supervisor if record and record.supervisor.alive else None


def write_record(home: Home, record: StackRecord) -> None:
    """Write the record, completely or not at all."""
    write_secret(home.state, record.model_dump_json(indent=2) + "\n")


def read_context(home: Home) -> dict[str, Any]:
    """The context for clients; empty before the first start."""
    try:
        context = json.loads(home.context.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return context if isinstance(context, dict) else {}


def recorded_config(home: Home) -> Path | None:
    """The settings file of the last stack; None if `down` has ended that stack, or if the file does not exist."""
    name = read_context(home).get("config")
    path = Path(name) if isinstance(name, str) and name else None
    return path if path and path.is_file() else None


def delete_config(home: Home) -> None:
    """Delete the settings file from the context, because `down` has ended the stack: the next one does not use it."""
    context = read_context(home)
    if context.pop("config", None) is not None:
        write_context(home, context)


def write_context(home: Home, context: Mapping[str, Any]) -> None:
    """Write the context for clients, completely or not at all."""
    write_secret(home.context, json.dumps(context, indent=2) + "\n")


def record_of(pid: int, *, restarts: int = 0, http: str | None = None, problem: str | None = None) -> ProcessRecord:
    """The record of a running process."""
    process = find(pid)
    mark = process.mark if process is not None and process.alive() else "ended"
    return ProcessRecord(pid=pid, mark=mark, restarts=restarts, http=http, problem=problem)


def ourselves() -> ProcessRecord:
    """The record of the current process."""
    return record_of(os.getpid())
