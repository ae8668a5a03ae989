"""Lets the model assess soft findings, one after the other, while this replica watches."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr, ValidationError

from monitor.assessment.assessment_request import ACTION_EVENTS, MAX_RECORDS, REQUEST_EVENTS, AssessmentCase, case_of
from monitor.assessment.model import assessment_of, client_for
from monitor.assessment.model_reply import Assessment
from monitor.facts import Key
from monitor.rules.rule import Pattern
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.errors import NoResponderError, RefusedError, RequestTimeoutError
from sandherd.contracts.decoder import read_stored
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EventData
from sandherd.contracts.requests import ListEvents, StoredEvent
from sandherd.settings import Settings
from sandherd.telemetry import logs

if TYPE_CHECKING:
    from pydantic_ai.models import Model

MAX_WAITING: Final = 64
"""Maximum number of findings that wait for the model. Further ones are not queued; they are suggested again later."""
_MAX_REQUESTS: Final = 100
"""Maximum number of events with the task's text or a message of a user that are read: the first ones."""
_MAX_ACTIONS: Final = 3 * MAX_RECORDS
"""Maximum number of other events that are read: the last ones. Some of them become no record."""
_MAX_READS: Final = 10
_RETRY_SECONDS: Final = 0.5
"""Seconds between two reads, while the history lacks the last event of the pattern."""
_HISTORY_ERRORS: Final = (*BROKER_ERRORS, NoResponderError, RefusedError, RequestTimeoutError, ValidationError)
_log: Final = logs.get("assessor")


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A soft finding in a sandbox, which is to be assessed."""

    key: Key
    pattern: Pattern
    at: datetime
    """When the pattern was found."""
    after: int = 0
    """The source sequence of the last event of the agent that an earlier verdict was based on; 0 if there is none."""


class Assessor:
    """The configured model, and the findings that wait for it.

    Raises `AssessorMissingError` if the packages of the model's client are not installed.
    """

    def __init__(self, bus: Bus, settings: Settings) -> None:
        assert settings.assessor_model is not None
        self.name = settings.assessor_model
        self.tokens_a_day = settings.assessor_tokens
        self._bus = bus
        key = SecretStr(settings.assessor_key) if settings.assessor_key else None
        self._model: Model[Any] = client_for(self.name, key, settings.assessor_url)
        self._waiting: asyncio.Queue[Suspicion] = asyncio.Queue(MAX_WAITING)
        self._pending: set[tuple[Key, str]] = set()

    def suggest(self, suspicion: Suspicion) -> None:
        """Queue a finding for assessment, unless it is queued already or the queue is full."""
        identity = suspicion.key, suspicion.pattern.rule
        if identity in self._pending or self._waiting.full():
            return
        self._pending.add(identity)
        self._waiting.put_nowait(suspicion)

    async def run(
        self, is_spent: Callable[[], bool], publish: Callable[[Suspicion, Assessment], Awaitable[None]]
    ) -> None:
        """Assess the queued findings, and publish each result. Raises what `publish` raises."""
        while True:
            suspicion = await self._waiting.get()
            try:
                assessment = Assessment(None, failure="no_allowance") if is_spent() else await self._assess(suspicion)
                await publish(suspicion, assessment)
            finally:
                self._pending.discard((suspicion.key, suspicion.pattern.rule))

    async def _assess(self, suspicion: Suspicion) -> Assessment:
        try:
            case = await self._load_case(suspicion)
        except _HISTORY_ERRORS as error:
            _log.warning("events for the assessment unavailable", sandbox=suspicion.key[1], error=type(error).__name__)
            return Assessment(None, failure="no_history")
        return await assessment_of(self._model, case)

    async def _load_case(self, suspicion: Suspicion) -> AssessmentCase:
        """The requests to the agent, and its events since the last verdict.

        Events that were assessed before are not read again.
        """
        actions = await self._load_actions(suspicion)
        requests = await self._load_events(suspicion, REQUEST_EVENTS, limit=_MAX_REQUESTS)
        return case_of(suspicion.pattern.rule, suspicion.pattern.summary, requests, actions)

    async def _load_actions(self, suspicion: Suspicion) -> list[Envelope[EventData]]:
        """The agent's actions, once the history has the last event of the pattern.

        event-ingest stores events with a delay. After `_MAX_READS` reads the actions so far are returned.
        """
        actions: list[Envelope[EventData]] = []
        for _ in range(_MAX_READS):
            actions = await self._load_events(
                suspicion, ACTION_EVENTS, limit=_MAX_ACTIONS, after_sequence=suspicion.after, newest_first=True
            )
            if not suspicion.pattern.evidence or suspicion.pattern.evidence[-1] in {event.id for event in actions}:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        return actions

    async def _load_events(
        self, suspicion: Suspicion, kinds: Iterable[type[EventData]], **filters: Any
    ) -> list[Envelope[EventData]]:
        """Events of the agent, oldest first."""
        project, sandbox = suspicion.key
        request = ListEvents(sandbox=sandbox, types=[kind.type for kind in kinds], **filters)
        page = await self._bus.ask(request, project)
        stored = sorted(page.events, key=lambda event: event.stream_sequence)
        return [event for entry in stored if (event := _read_event(entry)) is not None]


def _read_event(stored_event: StoredEvent) -> Any:
    """The event; None for one that this version can't read."""
    try:
        return read_stored(stored_event.envelope)
    except ContractError:
        return None
