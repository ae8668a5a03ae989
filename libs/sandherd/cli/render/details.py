"""Shows all facts of one task or sandbox, in groups: its identity and state, its settings, its cost, its times."""

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
_MICRO_USD_SUFFIX: Final = "_micro_usd"
_MAX_LABEL_LENGTH: Final = 24
"""Maximum characters of the label of a result's entry: the worker chooses its name, which may be long."""


def show(groups: Sequence[Facts]) -> None:
    """Print groups of facts, separated by empty lines. Groups without values are omitted."""
    shown_groups = [group for group in groups if any(value not in (None, "", [], {}, ()) for value in group.values())]
    width = max(len(label) for group in shown_groups for label in group)
    for number, group in enumerate(shown_groups):
        if number:
            write_text("")
        console.print_facts(group, width=width)


def task_facts(view: TaskView, cost_micro_usd: int | None = None) -> list[Facts]:
    """The groups of facts of a task. `cost_micro_usd` is the cost of all its attempts; None if it is unknown."""
    return [
        {
            "task": view.task,
            "project": view.project,
            "state": view.state,
            "reason": _with_type(view.error, view.error_type),
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
            "attempt": _attempt_text(view),
            "attempt limit": view.max_attempts if view.state in TASK_ENDED else None,
            "sandbox": view.sandbox,
            "cost": None if cost_micro_usd is None else console.money(cost_micro_usd),
            "priority": view.priority,
            "score": None if view.score is None else f"{view.score:.1f} (the task with the largest score begins first)",
        },
        {
            "submitted": view.submitted_at,
            "started": view.started_at,
            "ended": view.ended_at,
            "took": _duration_text(view.submitted_at, view.ended_at),
            "deadline": view.deadline,
        },
        dict(_result_fact(name, value) for name, value in view.result.items()),
    ]


def sandbox_facts(view: SandboxView) -> list[Facts]:
    """The groups of facts of a sandbox."""
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
            "took": _duration_text(view.requested_at, view.ended_at),
            "expires": None if view.ended_at else view.expires_at,
        },
        {
            "events": view.events or None,
            "last event": view.last_event_at,
            "last heartbeat": view.last_heartbeat_at,
        },
    ]


def attempt_number(view: TaskView) -> int:
    """The number of the current or last attempt; 0 if the first attempt has not begun.

    The view of such a task has the number of its next attempt, which is 1.
    """
    not_begun = view.attempt == 1 and view.started_at is None and view.sandbox is None
    return 0 if not_begun else view.attempt


def _attempt_text(view: TaskView) -> object:
    attempt = attempt_number(view)
    if view.state in TASK_ENDED:
        return attempt or "none"
    return f"{attempt} of {view.max_attempts}" if attempt else f"none yet, of at most {view.max_attempts}"


def _with_type(error: str | None, error_type: str | None) -> str | None:
    return f"{error} ({error_type})" if error and error_type else error or error_type


def _result_fact(name: str, value: object) -> tuple[str, object]:
    """The label and the value of an entry of a result."""
    if name.endswith(_MICRO_USD_SUFFIX) and isinstance(value, int):
        name, value = name.removesuffix(_MICRO_USD_SUFFIX), console.money(value)
    return f"result: {shortened(name.replace('_', ' '), _MAX_LABEL_LENGTH)}", value


def _pairs(labels: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _duration_text(begin: datetime, end: datetime | None) -> str | None:
    if end is None:
        return None
    seconds = max(0.0, (end - begin).total_seconds())
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
