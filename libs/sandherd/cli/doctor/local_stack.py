"""Checks of a local stack on its own machine: its keys, and the processes that its supervisor has recorded."""

import json
from pathlib import Path
from typing import Any, Final

from sandherd.client.context import FROM_CONTEXT, Context
from sandherd.client.doctor.check import Check, CheckState
from sandherd.lost_identity import lost_identity, lost_identity_remedy
from sandherd.processes import find

_SUPERVISOR_STATE: Final = Path("run") / "state.json"
_SUPERVISOR: Final = "supervisor"
_STOPPED: Final = "stopped"
_UP_REMEDY: Final = "start it again with `sandherd up`; sandboxes keep running"
_RESTART_REMEDY: Final = "the supervisor starts it again; if it does not, see `sandherd services logs {name}`"
_EXIT_REMEDY: Final = "it was restarted; give this machine more memory, or run fewer sandboxes at once"
"""The remedy for a process that an exhausted resource has ended."""


def is_local_stack(context: Context) -> bool:
    """Whether the herd is the local stack in this home."""
    return context.sources.get("nats_url") == FROM_CONTEXT and context.name is None


def check_identity(home: Path) -> list[Check]:
    """A failed check if the keys of the herd in this home are missing; else empty."""
    problem = lost_identity(home)
    return [Check("identity", CheckState.WRONG, problem, lost_identity_remedy(home))] if problem else []


def check_processes(home: Path) -> list[Check]:
    """A failed check for each process that does not run, including the supervisor. Empty for a stopped stack."""
    record = read_state(home)
    if not record or record.get("phase", _STOPPED) == _STOPPED:
        return []
    has_supervisor = _runs(record.get(_SUPERVISOR) or {})
    remedy = _RESTART_REMEDY if has_supervisor else _UP_REMEDY
    not_running = [] if has_supervisor else [_SUPERVISOR]
    not_running += [name for name, process in (record.get("processes") or {}).items() if not _runs(process)]
    return [Check(f"process {name}", CheckState.WRONG, "not running", remedy.format(name=name)) for name in not_running]


def check_exits(home: Path) -> list[Check]:
    """A warning for each process that was restarted for lack of a resource. Empty without a stack in this home."""
    processes = (read_state(home) or {}).get("processes", {})
    problems = {name: process.get("problem") for name, process in processes.items()}
    return [
        Check(f"process {name}", CheckState.WARNING, problem, _EXIT_REMEDY)
        for name, problem in problems.items()
        if problem
    ]


def read_state(home: Path) -> dict[str, Any] | None:
    """The state that the supervisor has stored; None if it can't be read."""
    try:
        record = json.loads((home / _SUPERVISOR_STATE).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _runs(process: dict[str, Any]) -> bool:
    """Whether the recorded process runs. Its mark excludes a later process with the same process id."""
    running = find(int(process.get("pid") or 0))
    return running is not None and running.mark == process.get("mark") and running.alive()
