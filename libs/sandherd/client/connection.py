"""A person's connection to the herd: questions, commands and listening, with errors that say what to do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import nats.errors
from nats.aio.msg import Msg
from pydantic import BaseModel

from sandherd.bus.connection import (
    Bus,
    BusError,
    Identity,
    NoResponderError,
    PublishFailedError,
    PublishRefusedError,
    RefusedError,
    RequestTimeoutError,
    Watch,
)
from sandherd.client import questions
from sandherd.client.context import Context, holder
from sandherd.client.errors import HerdError, NotReachedError, ServiceAwayError, broken, busy_wait, checked_name
from sandherd.client.link import Standing, Subscription
from sandherd.client.target import Target
from sandherd.contracts.commands import Command
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET, new_uuid
from sandherd.contracts.requests import Request
from sandherd.contracts.subjects import command_subject, covers, request_subject
from sandherd.telemetry.traceparents import new_traceparent
from sandherd.telemetry.traces import current_traceparent

COMMAND_SECONDS: Final = 10.0
FLUSH_SECONDS: Final = 2
_ANONYMOUS_INBOX: Final = "_INBOX_client"

AnswerT = TypeVar("AnswerT", bound=BaseModel)
T = TypeVar("T")


class Connection:
    """Asks, commands and listens in one project. Use `Connection.open`."""

    def __init__(self, bus: Bus, project: str, watch: Watch) -> None:
        self.bus = bus
        self.project = project
        self._source = f"/sandherd/client/{new_uuid()}"
        self._said = 0
        self._told: set[Callable[[bool], None]] = set()
        self._told_commands: set[Callable[[Envelope[Any]], None]] = set()
        self._refusals: dict[asyncio.Future[str], str] = {}
        watch.reconnected = lambda: self._tell(connected=True)
        watch.closed = lambda: self._tell(connected=False)
        watch.violated = self._on_violation

    @classmethod
    @asynccontextmanager
    async def open(cls, context: Context, *, patience: float = 5.0) -> AsyncIterator["Connection"]:
        """Connect, trying for `patience` seconds. Raises `NotReachedError`, or `HerdError` for a broken credential."""
        watch = Watch()
        identity, inbox, project = _identity(context)
        opening = Bus.open(
            context.nats_url, name="sandherd-client", identity=identity, inbox=inbox, watch=watch, patience=patience
        )
        try:
            bus = await opening.__aenter__()
        except BusError as error:
            raise _not_reached(context, error) from error
        try:
            yield cls(bus, project, watch)
        finally:
            await opening.__aexit__(None, None, None)

    @property
    def connected(self) -> bool:
        """Whether the connection stands at this moment."""
        return self.bus.connected

    async def ask(self, request: Request[AnswerT], *, timeout: float = 5.0) -> AnswerT:
        """Ask a service, waiting `timeout` seconds; asks again within them while it is busy.

        Raises `HerdError`; `ServiceAwayError` if nobody answers.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + timeout
        while True:
            try:
                return await self._ask_once(request, deadline - now())
            except HerdError as error:
                wait = busy_wait(error.problem)
                if wait is None or now() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)

    async def _ask_once(self, request: Request[AnswerT], timeout: float) -> AnswerT:
        subject = request_subject(request.type, self.project)
        try:
            return await self._unless_refused(subject, self.bus.ask(request, self.project, timeout=timeout))
        except RefusedError as error:
            raise HerdError(error.problem) from None
        except NoResponderError:
            raise ServiceAwayError.named(request.answered_by, "is not there") from None
        except RequestTimeoutError:
            raise ServiceAwayError.named(request.answered_by, f"did not answer within {timeout:.3g} s") from None
        except BusError as error:
            raise HerdError.of(
                Code.INTERNAL,
                f"{request.answered_by}: {error}",
                remedy="check that client and services are of one version",
            ) from error

    async def standing(self, target: Target) -> Standing:
        """How a target stands. Raises `HerdError`, with `not_found` if there is no such thing."""
        return await questions.standing(self.ask, target)

    async def command(self, command: Command, about: str) -> Envelope[Command]:
        """Give a command about an entity; it is kept by the broker when this returns. Raises `HerdError`."""
        if self.project == FLEET:
            raise HerdError.of(
                Code.REFUSED, "a command is for one project", field="project", remedy="name it with --project"
            )
        said = self._enveloped(command, about)
        subject = command_subject(command.type, self.project)
        for tell in list(self._told_commands):
            tell(said)
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await self._unless_refused(subject, self.bus.publish_command(said))
        except PublishRefusedError as error:
            raise HerdError.of(Code.TOO_LARGE, str(error), remedy="make it smaller") from error
        except (TimeoutError, PublishFailedError) as error:
            raise NotReachedError.of(
                Code.UNAVAILABLE,
                f"the broker did not acknowledge within {COMMAND_SECONDS:g} s; the command may have been taken",
                remedy="look with `sandherd tasks list`, and see what runs with `sandherd status`",
            ) from error
        return said

    async def listen(self, subject: str, handle: Callable[[str, bytes], Awaitable[None]]) -> Subscription:
        """Hear what is said on a subject; all of it after the next `settle`.

        Nobody checks which reply subject others in our account put on what they ask: what was said elsewhere, and comes
        here as an answer to them, is not heard.
        """

        async def on_message(message: Msg) -> None:
            if covers(subject, message.subject):
                await handle(message.subject, message.data)

        return await self.bus.client.subscribe(subject, cb=on_message)

    async def settle(self) -> None:
        """Wait until the broker has heard what we asked of it, and we have all that it sent us before.

        While it is away there is nothing to wait for: the client subscribes anew when it reconnects, and whoever
        follows catches up then.
        """
        with suppress(nats.errors.Error):
            await self.bus.settle(timeout=FLUSH_SECONDS)

    def on_change(self, tell: Callable[[bool], None]) -> Callable[[], None]:
        """Be told of every reconnect (True) and of the connection's end (False). Returns how to be told no more."""
        self._told.add(tell)
        return lambda: self._told.discard(tell)

    def on_command(self, tell: Callable[[Envelope[Any]], None]) -> Callable[[], None]:
        """Be told of every command just before it is given. Returns how to be told no more."""
        self._told_commands.add(tell)
        return lambda: self._told_commands.discard(tell)

    def _tell(self, *, connected: bool) -> None:
        for tell in list(self._told):
            tell(connected)

    def _enveloped(self, command: Command, about: str) -> Envelope[Command]:
        self._said += 1
        try:
            said = wrap(
                command,
                command.type,
                source=self._source,
                sequence=self._said,
                project=checked_name(self.project, "project"),
                subject=about,
                time=datetime.now(UTC),
                traceparent=current_traceparent() or new_traceparent(),
            )
            said.to_json()
        except ContractError as error:
            raise broken(error) from None
        return said

    async def _unless_refused(self, subject: str, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`, or for the broker to say that this credential may not: it says so aside, and only once."""
        refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._refusals[refusal] = subject
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, refusal}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if refusal.done() and not task.done():
                raise HerdError.of(
                    Code.REFUSED,
                    f"this credential may not say {subject}",
                    remedy="use a credential of that project, or an operator's, in SANDHERD_CREDENTIALS",
                )
            return await task
        finally:
            task.cancel()
            del self._refusals[refusal]

    def _on_violation(self, text: str) -> None:
        for refusal, subject in self._refusals.items():
            if subject in text and not refusal.done():
                refusal.set_result(text)


def _identity(context: Context) -> tuple[Identity, str, str]:
    """Who to connect as, the prefix of its reply subjects, and the project that is meant."""
    if context.credentials is None:
        return Identity.anonymous(), _ANONYMOUS_INBOX, context.project
    who = holder(context.credentials)
    chosen = context.sources.get("project", "default") != "default"
    return Identity.file(context.credentials), who.inbox, context.project if chosen else who.project or context.project


def _not_reached(context: Context, error: BusError) -> HerdError:
    until = holder(context.credentials).expires_at if context.credentials else None
    if until is not None and until <= datetime.now(UTC):
        return NotReachedError.of(
            Code.REFUSED,
            f"no broker lets anybody in as {context.credentials}, which ran out at {until:%Y-%m-%d %H:%M} UTC",
            remedy="get a new .creds file from whoever runs the herd",
        )
    who = f" as {context.credentials}" if context.credentials else " without a credential"
    if "authorization" in str(error).lower():
        return NotReachedError.of(
            Code.REFUSED, f"the broker at {context.nats_url} lets nobody in{who}", remedy="look with `sandherd doctor`"
        )
    return NotReachedError.of(
        Code.UNAVAILABLE,
        f"no broker at {context.nats_url}",
        remedy="start a stack with `sandherd up`, or set NATS_URL",
    )
