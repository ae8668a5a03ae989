"""Saying no to a command: as an event to whoever waits for it, or as a dead letter where nobody can wait."""

from typing import Any, Final

from sandherd.bus.consuming import Dead, Delivery, Outcome, Retry
from sandherd.contracts.derived_ids import DerivedIds
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events import EventData

_WAITS_FOR_SUBMIT: Final = 3
"""How often a command about something unknown comes again before it is dead: what makes it may be behind it."""


def refusal_event(
    ids: DerivedIds,
    command: Envelope[Any],
    said: EventData,
    delivery: Delivery,
    *,
    task: str | None = None,
    sandbox: str | None = None,
) -> Envelope[Any]:
    """The event that refuses a command about a task or a sandbox: the same for every delivery of the command."""
    subject = task or sandbox or command.subject
    source = f"/sandherd/spawner/{subject}/{command.id.hex}"
    return wrap(
        said,
        said.type,
        source=source,
        sequence=1,
        project=command.project,
        subject=subject,
        time=delivery.at,
        id=ids.derive(delivery.at, command.project, source, 1),
        taskid=task,
        sandboxid=sandbox,
        traceparent=command.traceparent,
    )


def may_come(delivery: Delivery) -> bool:
    """Whether what the command is about may still be on its way: commands are not told in the order of their making."""
    return delivery.deliveries < _WAITS_FOR_SUBMIT


def unknown(kind: str, name: str, delivery: Delivery) -> Outcome:
    """There is no such task or sandbox."""
    if may_come(delivery):
        return Retry(0.5, f"no {kind} {name} yet")
    return Dead(Problem(code=Code.NOT_FOUND, message=f"there is no {kind} {name}", field=kind))
