"""The summary of one sandbox, from the monitor's state of it; and the choice of the summaries to write now. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from monitor import file_edits, sandbox_usage
from monitor.facts import Key
from monitor.herd import Herd
from monitor.rules.rule import Pattern
from monitor.sandbox_state import Intervention, SandboxActivity
from monitor.sandbox_usage import COST, TOKENS, AgentTotals
from sandherd.contracts.records import (
    Edit,
    OpenFinding,
    SandboxSummary,
    SandboxUsage,
    SteeringSummary,
    SummaryState,
)

WRITE_EVERY: Final = 2.0
"""Minimum seconds between two writes of one summary."""
_USAGE_FIELDS: Final = (*TOKENS, COST, "metered", "priced", "unmetered_turns", "implausible")


def summary_of(state: SandboxActivity, patterns: Iterable[Pattern] = ()) -> SandboxSummary:
    """The summary to write. `patterns` are the findings at present."""
    progress, assignment = state.progress, state.assignment
    task_fields = {name: getattr(assignment, name) for name in _TASK_FIELDS} if assignment else {}
    return SandboxSummary(
        project=state.project,
        sandbox=state.sandbox,
        task=state.taskid,
        started_at=state.started_at,
        updated_at=_updated_at(state),
        sequence=state.number,
        state=state_of(state),
        turns=progress.turns,
        tool_calls=progress.tool_calls,
        errors=progress.errors,
        spending=_spending(progress, _updated_at(state)),
        edits=() if state.ended else _edits(state.edits),
        findings=tuple(OpenFinding(rule=found.rule, count=found.count, since=found.since) for found in patterns),
        interventions=state.steered,
        steerings=tuple(steering_of(intervention, state) for intervention in state.interventions),
        budget=state.budget,
        **task_fields,
    )


_TASK_FIELDS: Final = ("attempt", "harness", "title", "task_kind", "repository", "base", "branch")


def state_of(state: SandboxActivity) -> SummaryState:
    """The state that the summary shows: what the sandbox does, by its last events."""
    if state.ended:
        return "ended"
    if state.finished_at is not None:
        return "finished"
    if state.paused:
        return "paused"
    return "waiting" if _is_waiting(state) else "running"


def steering_of(intervention: Intervention, state: SandboxActivity) -> SteeringSummary:
    """An intervention as part of a summary.

    For an intervention without an outcome, the time of its delivery is only in `state.steering`.
    """
    current = state.steering
    is_current = current is not None and current.correlation == intervention.correlation
    return SteeringSummary(
        number=intervention.number,
        rule=intervention.rule,
        step=intervention.step,
        decided_at=intervention.decided_at,
        received_at=current.received_at if is_current and current is not None else intervention.received_at,
        outcome=intervention.outcome,
        outcome_at=intervention.outcome_at,
        approval_id=intervention.approval,
    )


def _is_waiting(state: SandboxActivity) -> bool:
    """Whether the sandbox waits for an approval, or its agent for a message."""
    waiting_at, worked_at = state.progress.waiting_at, state.last_work_at
    return any(call.waits for call in state.in_flight.values()) or (
        waiting_at is not None and (worked_at is None or worked_at <= waiting_at)
    )


def _updated_at(state: SandboxActivity) -> datetime:
    moments = (state.last_sign_at, state.finished_at, state.progress.paused_at)
    return state.finished_at or max(at for at in moments if at is not None)


def _spending(progress: AgentTotals, until: datetime) -> SandboxUsage:
    fields = {name: getattr(progress, name) for name in _USAGE_FIELDS}
    return SandboxUsage(wall_seconds=round(sandbox_usage.wall_seconds(progress, until), 3), **fields)


def _edits(packed: bytes) -> tuple[Edit, ...]:
    return tuple(
        Edit(
            path=edit.path,
            content_sha256=edit.digest.hex() if edit.digest else None,
            ranges=edit.ranges,
            at=edit.at,
            count=edit.count,
        )
        for edit in file_edits.unpack(packed)
    )


def due_states(herd: Herd, written: dict[Key, float], now: float, limit: int) -> list[SandboxActivity]:
    """The states whose summaries are to be written at `now`, in seconds of a monotonic clock; ended sandboxes first.

    `written` has the time of the last write for each live sandbox.
    """
    states = list(herd.unwritten.values())[:limit]
    for key in herd.changed:
        if len(states) >= limit:
            break
        state = herd.live.get(key)
        if state is not None and now - written.get(key, -WRITE_EVERY) >= WRITE_EVERY:
            states.append(state)
    return states
