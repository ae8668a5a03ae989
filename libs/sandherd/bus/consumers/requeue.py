"""Requeueing: handling a dead letter again."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import nats.errors
import nats.js.errors
from nats.js.api import RawStreamMsg

from sandherd.bus.api_subjects import API
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Dead, Done, Handler, Retry, outcome_of, revived
from sandherd.bus.errors import BusError
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import DeleteDead, RequeueResult
from sandherd.telemetry import logs

_DEAD: Final = "DEAD"
_log: Final = logs.get("requeue")


async def requeue(bus: Bus, service: str, number: int, handlers: Mapping[str, Handler]) -> RequeueResult:
    """Pass dead letter `number` to the handler of its stream; delete it from DEAD only if that succeeds.

    Raises `ContractError` if there is no such letter, it belongs to another service, its stream has no handler, or
    DEAD does not respond.
    """
    letter = await _letter(bus, number)
    headers = letter.headers or {}
    owner = headers.get("Sandherd-Service")
    if owner != service:
        raise ContractError(Code.REFUSED, f"dead letter {number} belongs to {owner}", field="number")
    delivery = revived(letter.subject or "", letter.data or b"", headers, letter.time or datetime.now(UTC))
    handle = handlers.get(delivery.stream)
    if handle is None:
        raise ContractError(Code.REFUSED, f"{service} has no handler for stream {delivery.stream}", field="number")
    try:
        outcome = await handle(delivery)
    except Exception as error:  # noqa: BLE001  # becomes the reply; the letter stays in DEAD
        _log.warning("requeued dead letter failed again", number=number, error=repr(error))
        outcome = outcome_of(error, deliveries=1)
    return await _conclude(bus, number, outcome)


async def _letter(bus: Bus, number: int) -> RawStreamMsg:
    try:
        return await bus.js.get_msg(_DEAD, number)
    except nats.js.errors.NotFoundError:
        raise ContractError(
            Code.NOT_FOUND, f"there is no dead letter {number}", field="number", remedy="list the dead letters"
        ) from None
    except (TimeoutError, nats.errors.Error) as error:
        raise ContractError(Code.UNAVAILABLE, f"stream DEAD does not respond: {error!r}") from error


async def _delete(bus: Bus, number: int) -> None:
    """Delete the letter; a service outside the streams' account requests that from the spawner."""
    if bus.api == API:
        await bus.js.delete_msg(_DEAD, number)
        return
    try:
        await bus.ask(DeleteDead(number=number), FLEET)
    except BusError as error:
        raise ContractError(
            Code.UNAVAILABLE,
            f"it was handled, but the spawner, which deletes dead letters, does not respond: {error}",
            remedy="check the herd; requeue it again, it will not take effect twice",
        ) from error


async def _conclude(bus: Bus, number: int, outcome: Done | Retry | Dead) -> RequeueResult:
    match outcome:
        case Done():
            await _delete(bus, number)
            return RequeueResult(number=number, outcome="done")
        case Retry(reason=reason):
            return RequeueResult(number=number, outcome="retry", detail=reason)
        case Dead(problem=problem):
            return RequeueResult(number=number, outcome="dead", detail=problem.message)
