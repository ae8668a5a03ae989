"""One connection to the broker that does not give up: endless reconnect with full jitter, acknowledged publishing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar, cast

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client, Server
from nats.js import JetStreamContext
from nats.js.api import PubAck
from pydantic import BaseModel

from sandherd.bus import leaving
from sandherd.bus.api_subjects import API
from sandherd.bus.connection_identity import Identity
from sandherd.bus.errors import (
    BusError,
    ConnectionLostError,
    LeaderlessError,
    NoResponderError,
    PublishFailedError,
    PublishRefusedError,
    RefusedError,
    RequestTimeoutError,
    StreamFullError,
    SubjectFullError,
    failure_of,
)
from sandherd.bus.pausing import FIRST_WAIT, LONGEST_WAIT, acknowledged_within, full_jitter, said_every, wait_after
from sandherd.bus.replies import read_reply
from sandherd.bus.waiting import LostError, Waiting
from sandherd.contracts.derived_ids import DerivedIds
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.requests import TIMEOUT_HEADER, Request
from sandherd.contracts.subjects import command_subject, event_subject, request_subject, sandbox_request_subject
from sandherd.telemetry import logs

__all__ = [
    "FIRST_WAIT",
    "LONGEST_WAIT",
    "Bus",
    "BusError",
    "ConnectionLostError",
    "Identity",
    "LeaderlessError",
    "NoResponderError",
    "PublishFailedError",
    "PublishRefusedError",
    "RefusedError",
    "RequestTimeoutError",
    "StreamFullError",
    "SubjectFullError",
    "Watch",
    "full_jitter",
    "read_reply",
    "said_every",
    "wait_after",
]

_NO_RESPONDER_RETRY: Final = 0.05
_LOOK_AGAIN: Final = 1.0

AnswerT = TypeVar("AnswerT", bound=BaseModel)
_log: Final = logs.get("bus")


class Watch:
    """What a connection reports of itself. Replace any of them before opening."""

    def __init__(self) -> None:
        self.disconnected: Callable[[], None] = lambda: None
        self.reconnected: Callable[[], None] = lambda: None
        self.violated: Callable[[str], None] = lambda _what: None
        self.closed: Callable[[], None] = lambda: None


class Bus:
    """A connection to the broker. Use `Bus.open`."""

    def __init__(self, name: str, watch: Watch) -> None:
        self.name = name
        self.ids = DerivedIds(b"")
        self.client = Client()
        self.api = API
        self.js: JetStreamContext = self.client.jetstream(timeout=5)
        self.reconnects = 0
        self.violations = 0
        self._attempt = 0
        self._closing = True
        self._watch = watch
        self._waiting = Waiting()
        self._changed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        name: str,
        identity: Identity,
        inbox: str,
        watch: Watch | None = None,
        patience: float | None = None,
        api: str = API,
    ) -> AsyncIterator["Bus"]:
        """Connect, waiting for the broker as long as it takes, and leave politely at the end.

        `inbox` is the prefix of this principal's reply subjects (`_INBOX_<name>`). `patience` bounds the first
        connect in seconds; then `BusError` is raised. `nats-py` alone would hang silently or close for good. `api` is
        what the JetStream API's subjects begin with in this principal's account.
        """
        bus = cls(name, watch or Watch())
        bus.api = api
        await bus._connect(url, identity, inbox, patience)
        bus.ids = identity.derived_ids()
        try:
            yield bus
        finally:
            bus._closing = True
            await leaving.leave(bus.client)

    @property
    def connected(self) -> bool:
        """Whether the connection stands at this moment."""
        return bool(self.client.is_connected)

    @property
    def closed(self) -> bool:
        """Whether the client gave up for good: a credential that ran out or was revoked, a message over the limit."""
        return bool(self.client.is_closed)

    @property
    def clustered(self) -> bool:
        """Whether the server we speak to is one of several."""
        return "cluster" in self.client._server_info  # noqa: SLF001  # what it said of itself; nats-py shows only parts

    def forget_unsent(self) -> None:
        """Drop what was published and not written yet; for a publisher that repeats everything in its own order.

        `nats-py` would send it after a reconnect, ahead of what was lost before it.
        """
        leaving.forget_unsent(self.client)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        msg_id: str,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Publish to a stream once. Returns the broker's acknowledgement.

        Raises `PublishFailedError` if none came (it may be stored all the same: `msg_id` makes a repetition harmless),
        `ConnectionLostError` if none can come any more, `LeaderlessError` if nobody takes it at the moment,
        `StreamFullError` if there is no room for it now, `SubjectFullError` if its subject has its share, and
        `PublishRefusedError` for what can never be taken.
        """
        timeout = timeout or acknowledged_within(clustered=self.clustered)
        sending = self.js.publish(subject, payload, timeout=timeout, headers={"Nats-Msg-Id": msg_id, **(headers or {})})
        try:
            return await self._waiting.unless_lost(sending)
        except LostError as error:
            raise ConnectionLostError(f"{subject}: the connection was lost") from error
        except (nats.errors.MaxPayloadError, nats.errors.BadSubjectError, ValueError) as error:
            raise PublishRefusedError(f"{subject}: {error!r}") from error
        except nats.js.errors.NoStreamResponseError as error:
            raise LeaderlessError(f"{subject}: {error!r}") from error
        except nats.js.errors.APIError as error:
            raise failure_of(error.err_code, error.description)(f"{subject}: {error.description}") from error
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError) as error:
            raise PublishFailedError(f"{subject}: {error!r}") from error

    async def publish_stored(
        self,
        subject: str,
        payload: bytes,
        *,
        msg_id: str,
        headers: Mapping[str, str] | None = None,
        while_full: bool = True,
    ) -> PubAck:
        """Publish until the broker has acknowledged, however long it is away, and with `while_full` however long full.

        Raises `PublishRefusedError` and `SubjectFullError`, and without `while_full` also `StreamFullError`.
        """
        attempt = 0
        while True:
            await self._until_connected()
            try:
                return await self.publish(subject, payload, msg_id=msg_id, headers=headers)
            except ConnectionLostError:
                continue
            except PublishFailedError as error:
                if isinstance(error, StreamFullError) and not while_full:
                    raise
                if attempt % said_every(error) == 0:
                    _log.warning("not acknowledged yet", subject=subject, attempt=attempt, error=str(error))
                if self.closed:
                    raise
                wait = wait_after(error, attempt)
            await asyncio.sleep(wait)
            attempt += 1

    async def publish_event(self, event: Envelope[Any], *, while_full: bool = True) -> PubAck:
        """Say an event, until the broker has it; see `publish_stored`."""
        subject = event_subject(event.project, event.subject, event.type)
        return await self.publish_stored(subject, event.to_json(), msg_id=str(event.id), while_full=while_full)

    async def publish_command(self, command: Envelope[Any]) -> PubAck:
        """Give a command, until the broker has it."""
        subject = command_subject(command.type, command.project)
        return await self.publish_stored(subject, command.to_json(), msg_id=str(command.id))

    async def request(
        self, subject: str, payload: bytes, *, timeout: float = 5.0, headers: dict[str, str] | None = None
    ) -> bytes:
        """Ask, and wait for one answer. Raises `NoResponderError` or `RequestTimeoutError`."""
        try:
            return await self._request_once(subject, payload, timeout, headers)
        except NoResponderError:
            # One in some 45,000 was seen to be wrong right after a subscription; a second one is believed.
            await asyncio.sleep(_NO_RESPONDER_RETRY)
            return await self._request_once(subject, payload, timeout, headers)

    async def _request_once(
        self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None
    ) -> bytes:
        try:
            return (await self.client.request(subject, payload, timeout=timeout, headers=headers)).data
        except nats.errors.NoRespondersError as error:
            raise NoResponderError(subject) from error
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise RequestTimeoutError(f"{subject}: {error!r}") from error

    async def settle(self, *, timeout: int = 2) -> None:
        """Return when the broker has all that was said and subscribed here. Raises `nats.errors.Error` if it is away.

        `nats-py` writes the PING of a flush ahead of what it has not written yet; all of that is written before the
        first PONG comes, and so before the second PING.
        """
        for _ in range(2):
            await self.client.flush(timeout)

    async def ask(
        self, request: Request[AnswerT], project: str, *, sandbox: str | None = None, timeout: float = 5.0
    ) -> AnswerT:
        """Ask something typed, of a service; `sandbox` stands in the subject of what is asked of its worker, or by it.

        Raises `RefusedError`, `NoResponderError` or `RequestTimeoutError`.
        """
        payload = request.model_dump_json(exclude_none=True).encode()
        named = sandbox_request_subject(request.type, project, sandbox) if sandbox else None
        subject = named or request_subject(request.type, project)
        answer = await self.request(subject, payload, timeout=timeout, headers={TIMEOUT_HEADER: f"{timeout:g}"})
        return read_reply(answer, cast("type[AnswerT]", request.Answer))

    async def _connect(self, url: str, identity: Identity, inbox: str, patience: float | None) -> None:
        deadline = None if patience is None else asyncio.get_running_loop().time() + patience
        while True:
            try:
                await self._connect_once(url, identity, inbox)
                self._attempt = 0
                self._closing = False
                return
            except (TimeoutError, nats.errors.Error, OSError) as error:
                if deadline is not None and asyncio.get_running_loop().time() > deadline:
                    raise BusError(f"no broker at {url} for {self.name}: {error!r}") from error
                _log.warning("the broker is not there yet", url=url, attempt=self._attempt, error=repr(error))
            self._attempt += 1
            await asyncio.sleep(full_jitter(self._attempt))

    async def _connect_once(self, url: str, identity: Identity, inbox: str) -> None:
        self.client = Client()
        try:
            await self.client.connect(
                servers=url.split(","),
                name=self.name,
                inbox_prefix=inbox,
                allow_reconnect=True,
                connect_timeout=2,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,  # the wait is ours: see _pick
                ping_interval=10,
                max_outstanding_pings=3,
                reconnect_to_server_handler=self._pick,
                error_cb=self._on_error,
                reconnected_cb=self._on_reconnected,
                disconnected_cb=self._on_disconnected,
                closed_cb=self._on_closed,
                **identity.options(),
            )
        except BaseException:  # also a cancellation: whatever it was goes on, but leaves no connection behind
            await leaving.close(self.client)
            raise
        # The first connect has to give up so that we say why; from here on it never does.
        self.client.options["max_reconnect_attempts"] = -1
        self.js = self.client.jetstream(prefix=self.api, timeout=5)

    def _pick(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
        """The next server in turn, and how long to wait before trying it."""
        wait = full_jitter(self._attempt) if self._attempt else 0.0
        self._attempt += 1
        return servers[self._attempt % len(servers)], wait

    async def _on_error(self, error: Exception) -> None:
        text = str(error)
        if "permissions violation" in text.lower():
            self.violations += 1
            self._watch.violated(text)
            _log.error("the broker refuses this subject to us", error=text)
        elif not self._closing:
            _log.warning("broker connection", error=repr(error))

    async def _until_connected(self) -> None:
        """Wait until the connection stands again, or is closed for good."""
        while not self.connected and not self.closed:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._changed.wait()

    async def _on_disconnected(self) -> None:
        self._watch.disconnected()
        self._waiting.lose()

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._attempt = 0
        self._changed.set()
        self._watch.reconnected()
        _log.info("reconnected", reconnects=self.reconnects)

    async def _on_closed(self) -> None:
        self._changed.set()
        self._waiting.lose()
        if not self._closing:
            _log.error("the broker closed this connection for good", error=repr(self.client.last_error))
            self._watch.closed()
