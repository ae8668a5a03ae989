"""Asking the worker of one sandbox: by its record, on its subject, with an answer or a typed refusal in any case."""

import asyncio
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from sandherd.bus.connection import Bus, BusError, NoResponderError, RefusedError, RequestTimeoutError
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import Request
from spawner.access import refusals
from spawner.live import Live
from spawner.records.unavailable import StoreUnavailableError
from spawner.sandboxes.record import SandboxRecord

MARGIN: Final = 5.0
"""How much longer than it was asked to hold its answer back a worker is waited for, in seconds."""
_RECONNECTS_IN: Final = 2.0
"""How long a worker may be off its subject before that is said: it renews its credential with a new connection."""
_PAUSE: Final = 0.1

AnswerT = TypeVar("AnswerT", bound=BaseModel)


class Reach:
    """The way to the workers."""

    def __init__(self, bus: Bus, live: Live) -> None:
        self._bus = bus
        self._live = live

    async def record(self, project: str, sandbox: str) -> SandboxRecord:
        """The sandbox as it stands in the bucket. Raises `ContractError` (`not_found`, `unavailable`)."""
        refusals.refuse(refusals.project_refusal(project))
        try:
            held = await self._live.sandboxes.load(f"{project}.{sandbox}")
        except StoreUnavailableError as error:
            raise ContractError(Code.UNAVAILABLE, f"the records do not answer: {error}", remedy="ask again") from error
        if held is None:
            raise refusals.error_of(refusals.unknown(project, sandbox))
        return held.record

    async def open_record(self, project: str, sandbox: str) -> SandboxRecord:
        """The same, of one that can be asked something. Raises `ContractError` (also `conflict`)."""
        record = await self.record(project, sandbox)
        refusals.refuse(refusals.state_refusal(record))
        return record

    async def ask(self, project: str, sandbox: str, request: Request[AnswerT], wait: float = 0.0) -> AnswerT:
        """The worker's answer, which it may hold back for `wait` seconds. Raises `ContractError`: its own or ours."""
        record = await self.open_record(project, sandbox)
        try:
            return await self._ask_until_there(record, request, wait + MARGIN)
        except RefusedError as error:
            raise refusals.error_of(refusals.from_worker(error.problem)) from None
        except NoResponderError:
            raise await self._silent(record, "is not there") from None
        except RequestTimeoutError:
            raise await self._silent(record, "does not answer") from None
        except BusError as error:
            raise refusals.error_of(refusals.nonsense(record, f"gave {error}")) from None

    async def _ask_until_there(self, record: SandboxRecord, request: Request[AnswerT], timeout: float) -> AnswerT:
        loop = asyncio.get_running_loop()
        patience = loop.time() + _RECONNECTS_IN
        while True:
            try:
                return await self._bus.ask(request, record.project, sandbox=record.sandbox, timeout=timeout)
            except NoResponderError:
                if loop.time() > patience:
                    raise
            await asyncio.sleep(_PAUSE)

    async def _silent(self, record: SandboxRecord, what: str) -> ContractError:
        """What its silence means, by what has become of it in the meantime."""
        record = await self.open_record(record.project, record.sandbox)
        return refusals.error_of(refusals.unanswered(record, what))


def of_worker(request: Request[Any], worker: type[Request[AnswerT]], **more: Any) -> Request[AnswerT]:
    """The question of people about a sandbox as the question to its worker: the same fields, and `more`."""
    fields = {name: getattr(request, name) for name in type(request).model_fields if name != "sandbox"}
    return worker(**fields, **more)
