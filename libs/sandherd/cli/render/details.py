"""One task or sandbox in full, as labelled facts in groups: what it is, its attempts and cost, its times, its end."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sandherd.cli.render import console
from sandherd.cli.render.branches import pull_request_facts
from sandherd.cli.render.event_line import shortened
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import SandboxView, TaskView
from sandherd.contracts.states import TASK_ENDED

Facts = Mapping[str, object]
"""Values by their labels; None and empty values are not shown."""

_MINUTE: Final = 60
_MICRO: Final = "_micro_usd"
_LABEL: Final = 24
"""Longest label of an entry of a result, whose names are a worker's text."""


def show(groups: Sequence[Facts]) -> None:
    """Print groups of facts with an empty line between two; a group without values is omitted."""
    shown = [group for group in groups if any(value not in (None, "", [], {}, ()) for value in group.values())]
    width = max(len(label) for group in shown for label in group)
    for number, group in enumerate(shown):
        if number:
            write_text("")
        console.facts(group, width=width)


def task_facts(view: TaskView, cost_micro_usd: int | None = None) -> list[Facts]:
    """The groups of a task. `cost_micro_usd` is of all its attempts, None if it is unknown."""
    return [
        {
            "task": view.task,
            "project": view.project,
            "state": view.state,
            "reason": _with_kind(view.error, view.error_type),
            "waits for": view.waits_for,
            "next attempt": None if view.state in TASK_ENDED else view.not_before,
        },
        {
            "text": view.text,
            "harness": view.harness,
            "runtime": view.runtime,
            "profile": view.profile,
            "repository": view.repository,
            "branch": view.branch,
            **{name.replace("_", " "): value for name, value in pull_request_facts(view.pull_request).items()},
            "labels": _pairs(view.labels),
            "depends on": ", ".join(view.depends_on),
            "secrets": ", ".join(view.secret_env),
            "secrets until": view.secrets_until,
        },
        {
            "attempt": _attempt(view),
            "attempt limit": view.max_attempts if view.state in TASK_ENDED else None,
            "sandbox": view.sandbox,
            "cost": None if cost_micro_usd is None else console.money(cost_micro_usd),
            "priority": view.priority,
            "score": None if view.score is None else f"{view.score:.1f} (the task with the largest begins first)",
        },
        {
            "submitted": view.submitted_at,
            "started": view.started_at,
            "ended": view.ended_at,
            "took": _took(view.submitted_at, view.ended_at),
            "deadline": view.deadline,
        },
        dict(_result(name, value) for name, value in view.result.items()),
    ]


def sandbox_facts(view: SandboxView) -> list[Facts]:
    """The groups of a sandbox."""
    return [
        {
            "sandbox": view.sandbox,
            "project": view.project,
            "state": view.state,
            "reason": view.reason,
            "error": view.error,
        },
        {
            "task": view.task,
            "attempt": view.attempt if view.task else None,
            "runtime": view.runtime,
            "isolation": view.isolation,
            "profile": view.profile,
            "from the pool": "yes" if view.warm else None,
        },
        {
            "requested": view.requested_at,
            "running since": view.running_at,
            "ended": view.ended_at,
            "took": _took(view.requested_at, view.ended_at),
            "expires": None if view.ended_at else view.expires_at,
        },
        {
            "events": view.events or None,
            "last event": view.last_event_at,
            "last heartbeat": view.last_heartbeat_at,
        },
    ]


def attempts_of(view: TaskView) -> int:
    """The number of the attempt: 0 of a task that has not started, whose first attempt is its next one."""
    unstarted = view.attempt == 1 and view.started_at is None and view.sandbox is None
    return 0 if unstarted else view.attempt


def _attempt(view: TaskView) -> object:
    attempt = attempts_of(view)
    if view.state in TASK_ENDED:
        return attempt or "none"
    return f"{attempt} of {view.max_attempts}" if attempt else f"none yet, of at most {view.max_attempts}"


def _with_kind(error: str | None, kind: str | None) -> str | None:
    return f"{error} ({kind})" if error and kind else error or kind


def _result(name: str, value: object) -> tuple[str, object]:
    """The label and the value of an entry of a result."""
    if name.endswith(_MICRO) and isinstance(value, int):
        name, value = name.removesuffix(_MICRO), console.money(value)
    return f"result: {shortened(name.replace('_', ' '), _LABEL)}", value


def _pairs(labels: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _took(begin: datetime, end: datetime | None) -> str | None:
    if end is None:
        return None
    seconds = max(0.0, (end - begin).total_seconds())
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
