"""Asks the model about soft findings, one after the other, while this replica watches."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import nats.errors
import nats.js.errors
from pydantic import SecretStr, ValidationError

from monitor.assessment.answer import Assessment
from monitor.assessment.case import Case, case_of
from monitor.assessment.model import ask, connected
from monitor.facts import Key
from monitor.rules.rule import Pattern
from sandherd.bus.connection import Bus
from sandherd.bus.errors import NoResponderError, RefusedError, RequestTimeoutError
from sandherd.contracts.decoder import read_event
from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import AskTrajectory, StoredEvent
from sandherd.contracts.subjects import event_subject
from sandherd.settings import Settings
from sandherd.telemetry import logs

if TYPE_CHECKING:
    from pydantic_ai.models import Model

MAX_WAITING: Final = 64
"""Maximum of findings that wait for the model; a further one has no verdict yet, and is considered again later."""
_PAGE: Final = 200
_NO_HISTORY: Final = (
    *(NoResponderError, RefusedError, RequestTimeoutError),
    *(nats.errors.Error, nats.js.errors.Error, asyncio.TimeoutError, OSError, ValidationError),
)
_log: Final = logs.get("assessor")


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A soft finding that is to be assessed, in a sandbox."""

    key: Key
    pattern: Pattern
    at: datetime
    """When it was found."""


class Assessor:
    """The configured model, and the findings that wait for it. Raises `AssessorMissingError` without its packages."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        assert settings.assessor_model is not None
        self.name = settings.assessor_model
        self.tokens_a_day = settings.assessor_tokens
        self._bus = bus
        key = SecretStr(settings.assessor_key) if settings.assessor_key else None
        self._model: Model[Any] = connected(self.name, key, settings.assessor_url)
        self._waiting: asyncio.Queue[Suspicion] = asyncio.Queue(MAX_WAITING)
        self._pending: set[tuple[Key, str]] = set()

    def suggest(self, suspicion: Suspicion) -> None:
        """Have a finding assessed, unless it already waits, or too many do."""
        identity = suspicion.key, suspicion.pattern.rule
        if identity in self._pending or self._waiting.full():
            return
        self._pending.add(identity)
        self._waiting.put_nowait(suspicion)

    async def run(
        self, is_spent: Callable[[], bool], publish: Callable[[Suspicion, Assessment], Awaitable[None]]
    ) -> None:
        """Assess what is suggested, and publish the result of each. Raises what `publish` raises."""
        while True:
            suspicion = await self._waiting.get()
            try:
                assessment = Assessment(None, failure="no_allowance") if is_spent() else await self._assess(suspicion)
                await publish(suspicion, assessment)
            finally:
                self._pending.discard((suspicion.key, suspicion.pattern.rule))

    async def _assess(self, suspicion: Suspicion) -> Assessment:
        try:
            case = await self._case(suspicion)
        except _NO_HISTORY as error:
            _log.warning("events for the assessment unavailable", sandbox=suspicion.key[1], error=type(error).__name__)
            return Assessment(None, failure="no_history")
        return await ask(self._model, case)

    async def _case(self, suspicion: Suspicion) -> Case:
        project, sandbox = suspicion.key
        page = await self._bus.ask(AskTrajectory(sandbox=sandbox, direction="older", limit=_PAGE), project)
        stored = sorted(page.events, key=lambda event: event.stream_sequence)
        events = [event for one in stored if (event := _read(one)) is not None]
        return case_of(suspicion.pattern.rule, suspicion.pattern.summary, events)


def _read(stored: StoredEvent) -> Any:
    """The event; None for one that this version can't read."""
    envelope = stored.envelope
    try:
        subject = event_subject(envelope["project"], envelope["subject"], envelope["type"])
        return read_event(subject, json.dumps(envelope).encode())
    except (ContractError, KeyError):
        return None
