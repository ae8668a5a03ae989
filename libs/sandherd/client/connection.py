"""A client's connection to the herd: requests, commands and subscriptions, with errors that name a remedy."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from pydantic import BaseModel

from sandherd.bus.auth.tls import TlsFiles
from sandherd.bus.connection import (
    Bus,
    BusError,
    ConnectionCallbacks,
    ConnectionIdentity,
    NoResponderError,
    PublishFailedError,
    PublishRefusedError,
    RefusedError,
    RequestTimeoutError,
)
from sandherd.client import queries
from sandherd.client.command_traceparent import command_traceparent
from sandherd.client.connection_failures import connection_error
from sandherd.client.context import Context, holder
from sandherd.client.errors import (
    HerdError,
    NotReachedError,
    ServiceUnavailableError,
    busy_wait,
    checked_name,
    closed_error,
    from_contract_error,
)
from sandherd.client.pending_creations import PendingCreations
from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET, new_uuid
from sandherd.contracts.requests.base import Request
from sandherd.contracts.subjects import command_subject, request_subject

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from sandherd.client.events.protocols import EntityStatus, LiveSubscription
    from sandherd.client.events.target import Target
    from sandherd.contracts.commands import Command

COMMAND_SECONDS: Final = 10.0
"""Maximum time for the broker to acknowledge a command."""
FLUSH_SECONDS: Final = 2
"""Maximum time for the broker to process everything that was sent."""
_ANONYMOUS_INBOX_PREFIX: Final = "_INBOX_client"

AnswerT = TypeVar("AnswerT", bound=BaseModel)
T = TypeVar("T")


class Connection:
    """Sends requests and commands, and subscribes, in one project. Use `Connection.open`."""

    def __init__(self, bus: Bus, project: str, callbacks: ConnectionCallbacks) -> None:
        self.project = project
        self._bus = bus
        self._is_closed = False
        self.creations = PendingCreations()
        self._source = f"/sandherd/client/{new_uuid()}"
        self._sequence = 0
        self._first_command_id: UUID | None = None
        self._change_callbacks: set[Callable[[bool], None]] = set()
        self._command_callbacks: set[Callable[[Envelope[Any]], None]] = set()
        self._refusals: dict[asyncio.Future[str], str] = {}
        callbacks.reconnected = lambda: self._notify(connected=True)
        callbacks.closed = lambda: self._notify(connected=False)
        callbacks.violated = self._on_permissions_violation

    @classmethod
    @asynccontextmanager
    async def open(cls, context: Context, *, patience: float = 5.0) -> AsyncIterator["Connection"]:
        """Connect within `patience` seconds. Raises `NotReachedError`, or `HerdError` for a broken credential."""
        callbacks = ConnectionCallbacks()
        identity, inbox, project = _identity(context)
        options: dict[str, Any] = {
            "identity": identity,
            "inbox": inbox,
            "watch": callbacks,
            "connect_timeout": patience,
        }
        tls = None if context.ca is None else replace(TlsFiles.of(), ca=context.ca)
        opening = Bus.open(context.nats_url, name="sandherd-client", tls=tls, **options)
        try:
            bus = await opening.__aenter__()
        except BusError as error:
            raise connection_error(context, error) from error
        connection = cls(bus, project, callbacks)
        try:
            yield connection
        finally:
            await opening.__aexit__(None, None, None)
            connection._is_closed = True

    @classmethod
    def over(cls, bus: Bus, project: str, *, issuer: str, first: UUID | None = None) -> "Connection":
        """A connection that uses the bus of a service, for the operations of one caller. The bus stays open.

        `issuer` is the source of its commands. `first` is the id of the first command, so that a retry has the same id.
        """
        connection = cls(bus, project, ConnectionCallbacks())
        connection._source, connection._first_command_id = issuer, first
        return connection

    @property
    def bus(self) -> Bus:
        """The connection to the broker. Raises `HerdError` if the context manager of `open` has ended."""
        if self._is_closed:
            raise closed_error()
        return self._bus

    @property
    def connected(self) -> bool:
        """Whether the client is connected now."""
        return self._bus.connected

    async def request(self, request: Request[AnswerT], *, timeout: float = 5.0) -> AnswerT:
        """Send a request to a service, and return its reply. Retries while the service is busy.

        Raises `HerdError`; it is a `ServiceUnavailableError` if there is no reply within `timeout` seconds.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + timeout
        while True:
            try:
                return await self._request_once(request, deadline - now())
            except HerdError as error:
                wait = busy_wait(error.problem)
                if wait is None or now() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)

    async def _request_once(self, request: Request[AnswerT], timeout: float) -> AnswerT:
        subject = request_subject(request.type, self.project)
        try:
            return await self._unless_refused(subject, self.bus.ask(request, self.project, timeout=timeout))
        except RefusedError as error:
            raise HerdError(error.problem) from None
        except NoResponderError:
            raise ServiceUnavailableError.named(request.answered_by, "is unavailable") from None
        except RequestTimeoutError:
            raise ServiceUnavailableError.named(request.answered_by, f"did not reply within {timeout:.3g} s") from None
        except BusError as error:
            raise HerdError.of(
                Code.INTERNAL,
                f"{request.answered_by}: {error}",
                remedy="check that client and services have the same version",
            ) from error

    async def entity_status(self, target: "Target") -> "EntityStatus":
        """The state of a task or a sandbox. Raises `HerdError`: `not_found` if it does not exist."""
        return await queries.entity_status(self.request, target)

    async def command(self, command: "Command", entity: str) -> "Envelope[Command]":
        """Publish a command about an entity. The broker has stored it when this returns. Raises `HerdError`."""
        if self.project == FLEET:
            raise HerdError.of(
                Code.REFUSED, "a command needs one project", field="project", remedy="name it with --project"
            )
        bus, (envelope, document) = self.bus, self._envelope(command, entity)
        subject = command_subject(command.type, self.project)
        for callback in list(self._command_callbacks):
            callback(envelope)
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await self._unless_refused(subject, bus.publish_stored(subject, document, msg_id=str(envelope.id)))
        except PublishRefusedError as error:
            raise HerdError.of(Code.TOO_LARGE, str(error), remedy="make it smaller") from error
        except (TimeoutError, PublishFailedError) as error:
            raise NotReachedError.of(
                Code.UNAVAILABLE,
                f"the broker did not acknowledge within {COMMAND_SECONDS:g} s; the command may have been stored",
                remedy="see `sandherd tasks list`, and see what runs with `sandherd status`",
            ) from error
        self.creations.add(envelope)
        return envelope

    async def listen(self, subject: str, handle: Callable[[str, bytes], Awaitable[None]]) -> "LiveSubscription":
        """Subscribe to the events or the output on a subject; the subscription is active after the next `flush`.

        Messages that the broker has not republished are ignored, because any user of the account can have a reply to
        its own request delivered to this subject.
        """
        from sandherd.bus.republished import is_republished

        async def on_message(message: "Msg") -> None:
            if is_republished(message, subject):
                await handle(message.subject, message.data)

        return await self.bus.client.subscribe(subject, cb=on_message)

    async def flush(self) -> None:
        """Wait until the broker has processed everything sent before, and its earlier messages are received.

        Errors of an unavailable broker are ignored, because nats-py subscribes again after a reconnect, and followers
        then request the events that they have missed.
        """
        import nats.errors  # not before `sandherd.bus`, which loads nats-py without aiohttp

        with suppress(nats.errors.Error):
            await self.bus.flush(timeout=FLUSH_SECONDS)

    def on_change(self, callback: Callable[[bool], None]) -> Callable[[], None]:
        """Call `callback` with True at each reconnect, and with False when the connection is closed permanently.

        Returns a function that removes the callback.
        """
        self._change_callbacks.add(callback)
        return lambda: self._change_callbacks.discard(callback)

    def on_command(self, callback: Callable[[Envelope[Any]], None]) -> Callable[[], None]:
        """Call `callback` with every command before it is published. Returns a function that removes it."""
        self._command_callbacks.add(callback)
        return lambda: self._command_callbacks.discard(callback)

    def _notify(self, *, connected: bool) -> None:
        for callback in list(self._change_callbacks):
            callback(connected)

    def _envelope(self, command: "Command", entity: str) -> "tuple[Envelope[Command], bytes]":
        """The envelope of a command, and its document. Raises `HerdError`, also for a command that is too large."""
        self._sequence += 1
        try:
            envelope = wrap(
                command,
                command.type,
                source=self._source,
                sequence=self._sequence,
                project=checked_name(self.project, "project"),
                subject=entity,
                time=datetime.now(UTC),
                id=self._first_command_id if self._sequence == 1 else None,
                traceparent=command_traceparent(),
            )
            return envelope, envelope.to_json()
        except ContractError as error:
            raise from_contract_error(error) from None

    async def _unless_refused(self, subject: str, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises `HerdError` (`refused`) when the broker reports a permissions violation.

        The broker reports a violation asynchronously, and only once.
        """
        refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._refusals[refusal] = subject
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, refusal}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if refusal.done() and not task.done():
                raise HerdError.of(
                    Code.REFUSED,
                    f"this credential has no permission for {subject}",
                    remedy="use a credential of that project, or an operator's, in SANDHERD_CREDENTIALS",
                )
            return await task
        finally:
            del self._refusals[refusal]
            await cancel_and_wait([task], again_after=SHORT_CLEANUP_SECONDS)

    def _on_permissions_violation(self, text: str) -> None:
        for refusal, subject in self._refusals.items():
            if subject in text and not refusal.done():
                refusal.set_result(text)


def _identity(context: Context) -> tuple[ConnectionIdentity, str, str]:
    """The identity to connect with, the prefix of its reply subjects, and the project."""
    if context.credentials is None:
        return ConnectionIdentity.anonymous(), _ANONYMOUS_INBOX_PREFIX, context.project
    bearer = holder(context.credentials)
    is_named = context.sources.get("project", "default") != "default"
    return (
        ConnectionIdentity.file(context.credentials),
        bearer.inbox,
        context.project if is_named else bearer.project or context.project,
    )
