"""Sends requests to the worker of a sandbox. The result is always a reply or a typed refusal."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from sandherd.bus.connection import Bus, BusError, NoResponderError, RefusedError, RequestTimeoutError
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import SANDBOX_PREFIX
from sandherd.contracts.requests import Request, SandboxView
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.service.service import IncomingRequest
from spawner.access import refusals
from spawner.live_state import LiveState
from spawner.records.base_record import StoreUnavailableError
from spawner.records.store import RecordT, StoredRecord
from spawner.sandboxes.sandbox_record import SandboxRecord

MARGIN: Final = 5.0
"""Seconds added to a long poll's wait to get the request's timeout."""
_RECONNECTS_IN: Final = 2.0
"""Seconds for which a request is repeated if its worker is not connected: a worker reconnects to renew its
credential."""
_PAUSE: Final = 0.1

AnswerT = TypeVar("AnswerT", bound=BaseModel)


class WorkerRequests:
    """Sends requests to workers. A request may be repeated: a worker executes the same id or offset only once.

    The spawner and the workers are in different accounts. When a sandbox ends, the spawner revokes its credential: it
    pushes a new JWT of the workers' account to the broker, right before it records the end. The broker then loses
    replies between accounts that it has not delivered yet. So when a sandbox ends, all pending requests are repeated,
    except those to this sandbox.
    """

    def __init__(self, bus: Bus, live: LiveState) -> None:
        self._bus = bus
        self._live = live
        self._ended = asyncio.Event()
        """Set when the next sandbox ends."""
        live.sandbox_index.on_change(self._note_end)

    def _note_end(self, _key: str, view: SandboxView) -> None:
        if view.state in SANDBOX_ENDED:
            self._ended.set()
            self._ended = asyncio.Event()

    async def record(self, project: str, sandbox: str) -> SandboxRecord:
        """The sandbox's record in the bucket. Raises `ContractError` (`not_found`, `unavailable`)."""
        refusals.refuse(refusals.project_refusal(project))
        held = await _loaded(self._live.sandboxes.load(f"{project}.{sandbox}"))
        if held is None:
            raise refusals.error_of(refusals.unknown(project, sandbox))
        return held.record

    async def has_record(self, project: str, name: str) -> bool:
        """Whether the sandbox or task of this name has a record. Raises `ContractError` (`unavailable`)."""
        if name.startswith(SANDBOX_PREFIX):
            return await _loaded(self._live.sandboxes.load(f"{project}.{name}")) is not None
        return await _loaded(self._live.tasks.load(f"{project}.{name}")) is not None

    async def open_record(self, project: str, sandbox: str) -> SandboxRecord:
        """The record of a sandbox that can receive requests. Raises `ContractError` as `record`, and `conflict`."""
        record = await self.record(project, sandbox)
        refusals.refuse(refusals.state_refusal(record))
        return record

    async def send_request(self, project: str, sandbox: str, request: Request[AnswerT], wait: float = 0.0) -> AnswerT:
        """The worker's reply, which may take `wait` seconds. Raises `ContractError`, also with the worker's refusal."""
        record = await self.open_record(project, sandbox)
        try:
            return await self._request_until_connected(record, request, wait + MARGIN)
        except RefusedError as error:
            raise refusals.error_of(refusals.from_worker(error.problem)) from None
        except NoResponderError:
            raise await self._silent(record, "is not connected") from None
        except RequestTimeoutError:
            raise await self._silent(record, "does not respond") from None
        except BusError as error:
            raise refusals.error_of(refusals.invalid_reply(record, f"sent an invalid reply: {error}")) from None

    async def forward(
        self, incoming: IncomingRequest[Any], worker: type[Request[AnswerT]], wait: float = 0.0
    ) -> AnswerT:
        """The worker's reply to a user's request about its sandbox. Raises `ContractError` as `send_request` does."""
        request = incoming.request
        return await self.send_request(incoming.project, request.sandbox, of_worker(request, worker), wait)

    async def _request_until_connected(
        self, record: SandboxRecord, request: Request[AnswerT], timeout: float
    ) -> AnswerT:
        loop = asyncio.get_running_loop()
        patience = loop.time() + _RECONNECTS_IN
        while True:
            try:
                return await self._request(record, request, timeout)
            except NoResponderError:
                if loop.time() > patience:
                    raise
            await asyncio.sleep(_PAUSE)

    async def _request(self, record: SandboxRecord, request: Request[AnswerT], timeout: float) -> AnswerT:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            left = max(0.0, deadline - loop.time())
            requesting = asyncio.ensure_future(
                self._bus.ask(request, record.project, sandbox=record.sandbox, timeout=left)
            )
            ended = asyncio.ensure_future(self._ended.wait())
            try:
                await asyncio.wait((requesting, ended), return_when=asyncio.FIRST_COMPLETED)
                if requesting.done():
                    return requesting.result()
            finally:
                await cancel_and_wait((requesting, ended))
            known = self._live.sandbox_index.get(f"{record.project}.{record.sandbox}")
            if known and known.view.state in SANDBOX_ENDED:  # its worker no longer replies
                await self.open_record(record.project, record.sandbox)

    async def _silent(self, record: SandboxRecord, what: str) -> ContractError:
        """The error for a worker that did not reply, by the sandbox's current state."""
        record = await self.open_record(record.project, record.sandbox)
        return refusals.error_of(refusals.unanswered(record, what))


async def _loaded(load: Awaitable[StoredRecord[RecordT] | None]) -> StoredRecord[RecordT] | None:
    try:
        return await load
    except StoreUnavailableError as error:
        raise ContractError(Code.UNAVAILABLE, f"the records are unavailable: {error}", remedy="retry") from error


def of_worker(request: Request[Any], worker: type[Request[AnswerT]], **more: Any) -> Request[AnswerT]:
    """The request to a worker with the fields of a user's request about its sandbox, and the fields in `more`."""
    fields = {name: getattr(request, name) for name in type(request).model_fields if name != "sandbox"}
    return worker(**fields, **more)
