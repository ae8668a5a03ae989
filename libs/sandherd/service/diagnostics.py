"""A service's reply to `examine`: the state of its parts and dependencies, and the backlog of its consumers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Protocol, TypeVar

import nats.errors
import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.bus.health import Health
from sandherd.bus.identity import bearer
from sandherd.bus.provision import check
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.requests.base import REQUESTS
from sandherd.contracts.requests.diagnostics import ConsumerBacklog, Examination, Examine, Part, PartKind
from sandherd.contracts.subjects import Principal
from sandherd.service.consumer_lag import ConsumerLag
from sandherd.service.requests import IncomingRequest
from sandherd.settings import Settings

ENOUGH: Final = 3.0
"""Timeout of a check in seconds; a requester waits a little longer than this for the reply."""

Probe = Callable[[], Awaitable[Mapping[str, str | None]]]
"""Checks dependencies of a service: by name None if healthy, else the problem."""
AnswerT = TypeVar("AnswerT")

_CONSUMER: Final = "consumer "
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


class ExaminedParts(Protocol):
    """The parts of a service that are examined."""

    instance: str
    health: Health
    settings: Settings
    bus: Bus

    @property
    def principal(self) -> Principal:
        """The service's name at the broker."""


class Diagnostics:
    """Replies to `examine` for one service. Checks that need requests run only then, never for a Kubernetes probe."""

    def __init__(self, service: ExaminedParts, backlog: ConsumerLag) -> None:
        self._service = service
        self._backlog = backlog
        self._clock: Callable[[], datetime] = partial(datetime.now, UTC)
        self._probes: list[tuple[PartKind, Probe]] = []

    @property
    def request(self) -> type[Examine]:
        """The type of the request."""
        return REQUESTS[f"{self._service.principal}.examine"]  # type: ignore[return-value]  # found by its name

    def add(self, kind: PartKind, probe: Probe) -> None:
        """Add a check. It may take up to `ENOUGH` seconds; an error of the broker or a timeout counts as no reply."""
        self._probes.append((kind, probe))

    async def answer(self, _request: IncomingRequest[Any]) -> Examination:
        """Reply to the request."""
        return await self.examine()

    async def examine(self) -> Examination:
        """The current state of the service."""
        service = self._service
        looking = [self._declared(), *(self._probe(kind, probe) for kind, probe in self._probes)]
        found, waiting = await asyncio.gather(
            asyncio.gather(*looking), _within(self._backlog.read(service.bus), list[ConsumerBacklog]())
        )
        return Examination(
            service=service.principal.value,
            version=version("sandherd"),
            instance=service.instance,
            now=self._clock(),
            credential_expires_at=self._expires(),
            parts=[*self._own(), *(part for parts in found for part in parts)],
            waiting=waiting,
        )

    def _own(self) -> list[Part]:
        health, problems = self._service.health, self._service.health.problems()
        parts = [
            Part(
                kind=_kind_of(name),
                name=name.removeprefix(_CONSUMER),
                problem=problems.get(name),
                detail=health.details.get(name),
            )
            for name in health.parts()
        ]
        return parts + [
            Part(kind=PartKind.WARNING, name=name, problem=text) for name, text in health.warnings().items()
        ]

    async def _declared(self) -> list[Part]:
        """The streams and consumers that differ from their declaration; one part, `all`, if the broker is silent."""
        silent = [Part(kind=PartKind.STREAM, name="all", problem="the broker does not respond")]
        return await _within(self._faults(), silent)

    async def _faults(self) -> list[Part]:
        faults = await check(self._service.bus.js, self._service.principal)
        return [Part(kind=PartKind.STREAM, name=fault.thing, problem=fault.problem) for fault in faults]

    async def _probe(self, kind: PartKind, probe: Probe) -> list[Part]:
        silent = {"all": f"no reply within {ENOUGH:g} s"}
        found = await _within(probe(), silent)
        return [Part(kind=kind, name=name, problem=problem) for name, problem in found.items()]

    def _expires(self) -> datetime | None:
        path = self._service.settings.credentials
        return bearer(path.read_text()).expires_at if path else None


def _kind_of(name: str) -> PartKind:
    return PartKind.CONSUMER if name.startswith(_CONSUMER) else PartKind.READINESS


async def _within(looking: Awaitable[AnswerT], otherwise: AnswerT) -> AnswerT:
    """The result within `ENOUGH` seconds, else `otherwise`. In a separate task: nats-py may swallow a cancellation."""
    task = asyncio.ensure_future(looking)
    try:
        done, _ = await asyncio.wait([task], timeout=ENOUGH)
        return task.result() if done else otherwise
    except _UNANSWERED:
        return otherwise
    finally:
        await cancel_and_wait([task])
