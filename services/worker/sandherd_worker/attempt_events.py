"""The events for the start and the end of an attempt."""

from pathlib import Path
from typing import Final

from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentStarted
from sandherd.lazy_imports import version
from sandherd_worker import oom
from sandherd_worker.emitter import now
from sandherd_worker.harnesses.base import AgentEnd
from sandherd_worker.storable_text import valid_text

_PREVIEW: Final = 2000


def started(spec: TaskSpec, attempt: int, work_tree: Path) -> AgentStarted:
    """The agent's first event, with the current time."""
    repository = spec.repository
    checkout = repository.checkout if repository else None
    return AgentStarted(
        timestamp=now(),
        sdk=spec.harness.kind,
        worker_version=version("sandherd-worker"),
        model=_model(spec),
        task=spec.text[:_PREVIEW],
        task_description_length=len(spec.text),
        task_kind=spec.kind,
        work_tree=valid_text(str(work_tree)),
        attempt=attempt,
        repository=repository.shown if repository else None,
        base=checkout.base if checkout else None,
        branch=checkout.branch if checkout else None,
    )


def _model(spec: TaskSpec) -> str | None:
    """The model that the harness names. The options of a plugin's harness may use that name for anything."""
    model = getattr(spec.harness, "model", None)
    return model if isinstance(model, str) else None


def terminal_event(
    ended: AgentEnd, kind: str, *, seconds: float, files: int, cgroup: Path | None
) -> AgentCompleted | AgentFailed:
    """The attempt's terminal event; a failure includes the memory figures of its cgroup."""
    facts = {
        "turn": ended.turns,
        "turns": ended.turns,
        "exit_code": ended.exit_code,
        "final_output": ended.final_output,
        "stop_reason": ended.stop_reason,
        "session_id": ended.session_id,
        "duration_seconds": seconds,
        "files_changed": files,
        **ended.used,
    }
    if ended.error_type is None:
        done = {"agent_type": kind, "validation_passed": ended.validation_passed}
        return AgentCompleted.model_validate({**facts, **done})
    failure = {"error": ended.error, "error_type": ended.error_type, "signal": ended.signal}
    return AgentFailed.model_validate({**facts, **failure, **oom.memory_fields(cgroup)})
