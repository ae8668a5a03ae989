"""The events that reject a command, and the outcome of a command about a task or sandbox that does not exist."""

from typing import Any, Final

from sandherd.bus.consumers.consumer import Dead, Delivery, Outcome, Retry
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events import EventData
from sandherd.contracts.names import DerivedIds

_WAITS_FOR_SUBMIT: Final = 3
"""Deliveries of a command about an unknown task or sandbox before it becomes a dead letter.

The command that creates the task or sandbox may arrive later.
"""


def refusal_event(
    ids: DerivedIds,
    command: Envelope[Any],
    event: EventData,
    delivery: Delivery,
    *,
    task: str | None = None,
    sandbox: str | None = None,
) -> Envelope[Any]:
    """The event that rejects a command about a task or a sandbox. It is identical for every delivery of the command."""
    subject = task or sandbox or command.subject
    source = f"/sandherd/spawner/{subject}/{command.id.hex}"
    return wrap(
        event,
        event.type,
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


def may_arrive_later(delivery: Delivery) -> bool:
    """Whether the command's task or sandbox may still be created: commands may arrive in another order than sent."""
    return delivery.deliveries < _WAITS_FOR_SUBMIT


def unknown(kind: str, name: str, delivery: Delivery) -> Outcome:
    """The outcome of a command about a task or sandbox that does not exist."""
    if may_arrive_later(delivery):
        return Retry(0.5, f"no {kind} {name} yet")
    return Dead(Problem(code=Code.NOT_FOUND, message=f"there is no {kind} {name}", field=kind))
