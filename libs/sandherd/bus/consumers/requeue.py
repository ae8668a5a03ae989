"""Requeues a dead letter: the handler of its stream handles it again."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import nats.errors
import nats.js.errors
from nats.js.api import RawStreamMsg

from sandherd.bus.api_subjects import API
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Dead, Done, Handler, Retry, original_delivery, outcome_of
from sandherd.bus.errors import BusError
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.headers import DEAD_SERVICE, DEAD_SUBJECT
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import DeleteDead, Requeue, RequeueResult
from sandherd.contracts.subjects import project_of
from sandherd.telemetry import logs

_DEAD: Final = "DEAD"
_log: Final = logs.get("requeue")


async def requeue(
    bus: Bus, service: str, request: Requeue, project: str, handlers: Mapping[str, Handler]
) -> RequeueResult:
    """Pass a dead letter to the handler of its stream; delete it from DEAD only if that succeeds.

    `project` comes from the request's subject, which the broker has checked; `fleet` means all projects. Raises
    `ContractError` if the project has no such letter, if the letter belongs to another service, if its stream has no
    handler, or if DEAD does not respond.
    """
    number = request.number
    letter = await _read_letter(bus, number)
    _check_letter(letter, number, service, project)
    delivery = original_delivery(
        letter.subject or "", letter.data or b"", letter.headers or {}, letter.time or datetime.now(UTC)
    )
    _log.info(
        "dead letter requeued", number=number, project=project, subject=delivery.subject, user=request.requeued_by
    )
    handle = handlers.get(delivery.stream)
    if handle is None:
        raise ContractError(Code.REFUSED, f"{service} has no handler for stream {delivery.stream}", field="number")
    try:
        outcome = await handle(delivery)
    except Exception as error:  # noqa: BLE001  # becomes the reply; the letter stays in DEAD
        _log.warning("requeued dead letter failed again", number=number, error=repr(error))
        outcome = outcome_of(error, deliveries=1)
    return await _finish(bus, number, outcome)


def _check_letter(letter: RawStreamMsg, number: int, service: str, project: str) -> None:
    """Raise `ContractError` for a letter of another service or project. The latter counts as unknown."""
    headers = letter.headers or {}
    if project != FLEET and project_of(headers.get(DEAD_SUBJECT, "")) != project:
        raise _not_found_error(number)
    owner = headers.get(DEAD_SERVICE)
    if owner != service:
        raise ContractError(Code.REFUSED, f"dead letter {number} belongs to {owner}", field="number")


def _not_found_error(number: int) -> ContractError:
    text = f"there is no dead letter {number}"
    return ContractError(Code.NOT_FOUND, text, field="number", remedy="list the dead letters")


async def _read_letter(bus: Bus, number: int) -> RawStreamMsg:
    try:
        return await bus.js.get_msg(_DEAD, number)
    except nats.js.errors.NotFoundError:
        raise _not_found_error(number) from None
    except (TimeoutError, nats.errors.Error) as error:
        raise ContractError(Code.UNAVAILABLE, f"stream DEAD does not respond: {error!r}") from error


async def _delete(bus: Bus, number: int) -> None:
    """Delete the letter. A service outside the streams' account sends the spawner a request to delete it."""
    if bus.api == API:
        await bus.js.delete_msg(_DEAD, number)
        return
    try:
        await bus.ask(DeleteDead(number=number), FLEET)
    except BusError as error:
        raise ContractError(
            Code.UNAVAILABLE,
            f"dead letter {number} was handled, but the spawner did not respond to the request to delete it: {error}",
            remedy="check the herd, and requeue it again; it will not take effect twice",
        ) from error


async def _finish(bus: Bus, number: int, outcome: Done | Retry | Dead) -> RequeueResult:
    match outcome:
        case Done():
            await _delete(bus, number)
            return RequeueResult(number=number, outcome="done")
        case Retry(reason=reason):
            return RequeueResult(number=number, outcome="retry", detail=reason)
        case Dead(problem=problem):
            return RequeueResult(number=number, outcome="dead", detail=problem.message)
