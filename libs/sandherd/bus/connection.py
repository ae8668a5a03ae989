"""One connection to the broker: reconnects without limit, with full jitter, and publishes with acknowledgement."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import nats
import nats.errors
from nats.aio.client import Server
from pydantic import BaseModel

from sandherd.bus import publish_retries, shutdown
from sandherd.bus.api_subjects import API
from sandherd.bus.auth.connection_identity import ConnectionIdentity
from sandherd.bus.auth.tls import TlsFiles
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.denied_subjects import DeniedSubjects
from sandherd.bus.dropped_messages import DroppedMessages
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
    TlsError,
)
from sandherd.bus.publish_window import PublishWindow
from sandherd.bus.replies import Acknowledgement, PendingCalls, read_reply
from sandherd.bus.tls_client import TlsClient, requires_tls
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.headers import MESSAGE_ID
from sandherd.contracts.names import DerivedIds
from sandherd.contracts.requests import TIMEOUT_HEADER, Request
from sandherd.contracts.subjects import command_subject, event_subject, request_subject, sandbox_request_subject
from sandherd.telemetry import logs

if TYPE_CHECKING:
    from nats.js import JetStreamContext

__all__ = [
    "Bus",
    "BusError",
    "ConnectionCallbacks",
    "ConnectionIdentity",
    "ConnectionLostError",
    "LeaderlessError",
    "NoResponderError",
    "PublishFailedError",
    "PublishRefusedError",
    "RefusedError",
    "RequestTimeoutError",
    "StreamFullError",
    "SubjectFullError",
    "TlsError",
]

_NO_RESPONDER_DELAY_SECONDS: Final = 0.05
_CHECK_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 6.0
"""Maximum time to connect to one server, including the TLS handshake and the server's reply."""

AnswerT = TypeVar("AnswerT", bound=BaseModel)
_log: Final = logs.get("bus")


class ConnectionCallbacks:
    """Functions that are called when the state of a connection changes. Set them before `Bus.open`."""

    def __init__(self) -> None:
        self.disconnected: Callable[[], None] = lambda: None
        self.reconnected: Callable[[], None] = lambda: None
        self.violated: Callable[[str], None] = lambda _text: None
        self.closed: Callable[[], None] = lambda: None


class Bus:
    """A connection to the broker. Use `Bus.open`."""

    def __init__(self, name: str, watch: ConnectionCallbacks, tls: TlsFiles | None = None) -> None:
        self.name, self.ids = name, DerivedIds(b"")
        self.client = TlsClient(tls_required=False)
        self.api = API
        self.reconnects = self.violations = self._attempt = 0
        self._dropped, self._denied = DroppedMessages(), DeniedSubjects()
        self._closing = True
        self._callbacks = watch
        self._waiting = PendingCalls()
        self._window: PublishWindow | None = None
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        """The last error that nats-py reported. If a connect times out, it is the reason."""
        self._tls = tls or TlsFiles.of()
        self._tls_context = self._tls.context()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        name: str,
        identity: ConnectionIdentity,
        inbox: str,
        watch: ConnectionCallbacks | None = None,
        connect_timeout: float | None = None,
        api: str = API,
        tls: TlsFiles | None = None,
    ) -> AsyncIterator["Bus"]:
        """Connect, retrying until the broker responds; drain and close at the end.

        `inbox` is the prefix of this principal's reply subjects (`_INBOX_<name>`). `connect_timeout` limits the time
        for the first connect, in seconds; after that time `BusError` is raised, or `TlsError`. `nats-py` alone would
        hang without an error, or close the connection permanently. `api` is the prefix of the JetStream API's subjects
        in this principal's account. `tls` are the TLS files, by default those that environment variables name.
        """
        bus = cls(name, watch or ConnectionCallbacks(), tls)
        bus.api = api
        await bus._connect(url, identity, inbox, connect_timeout)
        bus.ids = identity.derived_ids()
        try:
            yield bus
        finally:
            bus._closing = True
            await shutdown.drain(bus.client)

    @cached_property
    def js(self) -> "JetStreamContext":
        """nats-py's JetStream client. It is created on first use, because many programs only send requests."""
        return self.client.jetstream(prefix=self.api, timeout=5)

    @property
    def connected(self) -> bool:
        """Whether the connection is established at this moment."""
        return bool(self.client.is_connected)

    @property
    def closed(self) -> bool:
        """Whether the connection is closed permanently: credential expired or revoked, or a message too large."""
        return bool(self.client.is_closed)

    @property
    def clustered(self) -> bool:
        """Whether the connected server belongs to a cluster."""
        return self.client.is_clustered

    def drop_unsent(self) -> None:
        """Drop messages that are not written yet, for a publisher that republishes all unacknowledged ones in order.

        After a reconnect, `nats-py` would send them ahead of earlier messages that were lost.
        """
        shutdown.drop_unsent(self.client)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        msg_id: str,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Acknowledgement:
        """Publish to a stream once. Returns the broker's acknowledgement.

        Raises `PublishFailedError` if no acknowledgement was received (the message may be stored; the broker drops a
        repetition with this `msg_id`), `ConnectionLostError` if the connection was lost, `LeaderlessError` if the
        stream has no leader, `StreamFullError` if it is full now, `SubjectFullError` if the subject has its maximum
        number of messages, and `PublishRefusedError` for a message that the broker will never accept.
        """
        timeout = timeout or publish_retries.acknowledgement_timeout(clustered=self.clustered)
        headers = {MESSAGE_ID: msg_id, **(headers or {})}
        sending = self.client.request(subject, payload, timeout=timeout, headers=headers)
        return await self._waiting.acknowledgement(subject, sending)

    async def publish_window(self) -> PublishWindow:
        """The connection's `PublishWindow`, to publish many messages at a time. Raises `PublishFailedError`."""
        if self._window is None:
            self._window = await PublishWindow.open(self.client)
            self._waiting.on_lost = self._window.fail_all
        return self._window

    async def publish_stored(
        self,
        subject: str,
        payload: bytes,
        *,
        msg_id: str,
        headers: Mapping[str, str] | None = None,
        while_full: bool = True,
        check: Callable[[], None] | None = None,
    ) -> Acknowledgement:
        """Publish, and retry until the message is acknowledged; with `while_full` also while the stream is full.

        `check` is called before each attempt. Raises its error, `PublishRefusedError`, `SubjectFullError`,
        `WrongLastSequenceError`, `StreamFullError` without `while_full`, and `BusError` if the connection is closed.
        """
        attempt = 0
        while True:
            await self._until_connected()
            if check is not None:
                check()
            try:
                return await self.publish(subject, payload, msg_id=msg_id, headers=headers)
            except ConnectionLostError:
                continue
            except PublishFailedError as error:
                if self.closed or not publish_retries.is_retried(error, while_full=while_full):
                    raise
                if attempt % publish_retries.failures_per_log_line(error) == 0:
                    _log.warning(
                        "message not acknowledged, retrying", subject=subject, attempt=attempt, error=str(error)
                    )
                wait = publish_retries.publish_delay(error, attempt)
            await asyncio.sleep(wait)
            attempt += 1

    async def publish_event(
        self,
        event: Envelope[Any],
        *,
        msg_id: str | None = None,
        while_full: bool = True,
        check: Callable[[], None] | None = None,
    ) -> Acknowledgement:
        """Publish an event as `publish_stored` does. Its message id is by default the event's id."""
        subject, document = event_subject(event.project, event.subject, event.type), event.to_json()
        msg_id = msg_id or str(event.id)
        return await self.publish_stored(subject, document, msg_id=msg_id, while_full=while_full, check=check)

    async def publish_command(
        self, command: Envelope[Any], *, check: Callable[[], None] | None = None
    ) -> Acknowledgement:
        """Publish a command as `publish_stored` does. Its message id is the command's id."""
        subject = command_subject(command.type, command.project)
        return await self.publish_stored(subject, command.to_json(), msg_id=str(command.id), check=check)

    async def request(
        self, subject: str, payload: bytes, *, timeout: float = 5.0, headers: dict[str, str] | None = None
    ) -> bytes:
        """Send a request and wait for one reply. Raises `NoResponderError` or `RequestTimeoutError`."""
        try:
            return await self._request_once(subject, payload, timeout, headers)
        except NoResponderError:
            # Retried once, because 1 in 45,000 of these replies was wrong, just after the responder had subscribed.
            await asyncio.sleep(_NO_RESPONDER_DELAY_SECONDS)
            return await self._request_once(subject, payload, timeout, headers)

    async def _request_once(
        self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None
    ) -> bytes:
        try:
            return (await self.client.request(subject, payload, timeout=timeout, headers=headers)).data
        except nats.errors.NoRespondersError as error:
            raise NoResponderError(subject) from error
        except BROKER_ERRORS as error:
            raise RequestTimeoutError(f"{subject}: {error!r}") from error

    async def flush(self, *, timeout: int = 2) -> None:
        """Return when the broker has received all messages and subscriptions of this connection.

        Raises `nats.errors.Error` if it is unavailable. Flushes twice, because `nats-py` writes a PING ahead of
        unwritten data, but writes that data before it receives the PONG, and so before the second PING.
        """
        for _ in range(2):
            await self.client.flush(timeout)

    async def ask(
        self, request: Request[AnswerT], project: str, *, sandbox: str | None = None, timeout: float = 5.0
    ) -> AnswerT:
        """Send a typed request to a service. `sandbox` is part of the subject of requests to its worker or from it.

        Raises `RefusedError`, `NoResponderError` or `RequestTimeoutError`.
        """
        payload = request.model_dump_json(exclude_none=True).encode()
        sandbox_subject = sandbox_request_subject(request.type, project, sandbox) if sandbox else None
        subject = sandbox_subject or request_subject(request.type, project)
        reply = await self.request(subject, payload, timeout=timeout, headers={TIMEOUT_HEADER: f"{timeout:g}"})
        return read_reply(reply, cast("type[AnswerT]", request.Answer))

    async def _connect(self, url: str, identity: ConnectionIdentity, inbox: str, connect_timeout: float | None) -> None:
        deadline = None if connect_timeout is None else asyncio.get_running_loop().time() + connect_timeout
        refusal: Exception | None = None  # reported, because later attempts may only see that the broker closes
        while True:
            try:
                await self._connect_once(url, identity, inbox)
                self._attempt, self._closing = 0, False
                return
            except BROKER_ERRORS as error:
                refusal = error if "authorization" in str(error).lower() else refusal
                if deadline is not None and asyncio.get_running_loop().time() > deadline:
                    raise self._not_connected(url, refusal or error) from error
                _log.warning("broker not reachable, retrying", url=url, attempt=self._attempt, error=repr(error))
            self._attempt += 1
            await asyncio.sleep(publish_retries.BROKER_BACKOFF.delay(self._attempt))

    def _not_connected(self, url: str, error: Exception) -> BusError:
        reason = str(error) or repr(error)
        if self.client.is_tls_failure(error):
            return TlsError(f"no TLS connection to {url}: {reason}")
        return BusError(f"no broker at {url} for {self.name}: {reason}")

    async def _connect_once(self, url: str, identity: ConnectionIdentity, inbox: str) -> None:
        self.client = TlsClient(tls_required=self._tls_context is not None or requires_tls(url))
        self._failure = None
        self._renew_tls_files()
        try:
            await self._connect_client(url, identity, inbox)
        except BaseException:  # also a cancellation: it is raised again, but no connection may be left open
            await shutdown.close(self.client)
            raise
        # The first connect has a limit of attempts, so that its failure is logged. Reconnects have none.
        self.client.options["max_reconnect_attempts"] = -1
        vars(self).pop("js", None)  # the cached JetStream client belongs to the previous client

    async def _connect_client(self, url: str, identity: ConnectionIdentity, inbox: str) -> None:
        """Connect within a time limit, as nats-py may wait forever after a failed TLS handshake. Raises its errors."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS * len(url.split(","))):
                await self.client.connect(
                    servers=url.split(","),
                    name=self.name,
                    inbox_prefix=inbox,
                    allow_reconnect=True,
                    connect_timeout=2,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,  # _pick computes the delay
                    ping_interval=10,
                    max_outstanding_pings=3,
                    reconnect_to_server_handler=self._pick,
                    error_cb=self._on_error,
                    reconnected_cb=self._on_reconnected,
                    disconnected_cb=self._on_disconnected,
                    closed_cb=self._on_closed,
                    tls=self._tls_context,
                    **identity.options(),
                )
        except (TimeoutError, nats.errors.NoServersError):
            if self._failure is not None:
                raise self._failure from None
            raise

    def _pick(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
        """The next server of the list, and the delay before connecting to it, in seconds. Called by nats-py."""
        self._renew_tls_files()
        wait = publish_retries.BROKER_BACKOFF.delay(self._attempt) if self._attempt else 0.0
        self._attempt += 1
        return servers[self._attempt % len(servers)], wait

    def _renew_tls_files(self) -> None:
        if self._tls_context is None:
            return
        try:
            self._tls.load(self._tls_context)
        except BusError as error:  # such as a file that is being replaced; the previous files may still be valid
            _log.warning("certificate files not reloaded", error=str(error))

    async def _on_error(self, error: Exception) -> None:
        self._failure = error
        if "permissions violation" in (text := str(error)).lower():
            self.violations += 1
            self._callbacks.violated(text)
            self._denied.add(text)
        elif isinstance(error, nats.errors.SlowConsumerError):
            self._dropped.add(error)
        elif not self._closing:
            _log.warning("broker connection error", error=repr(error))

    async def _until_connected(self) -> None:
        """Wait until the connection is established again, or closed permanently."""
        while not self.connected and not self.closed:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._changed.wait()

    async def _on_disconnected(self) -> None:
        self._callbacks.disconnected()
        self._waiting.end_all()

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._attempt = 0
        self._changed.set()
        self._callbacks.reconnected()
        _log.info("broker connection restored", reconnects=self.reconnects)

    async def _on_closed(self) -> None:
        self._changed.set()
        self._waiting.end_all()
        if not self._closing:
            _log.error("broker connection closed permanently", error=repr(self.client.last_error))
            self._callbacks.closed()
