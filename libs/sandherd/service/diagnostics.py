"""Replies to the request `examine`: the state of a service's parts and dependencies, and its consumers' backlog."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Protocol, TypeVar

from sandherd.bus.broker_errors import BROKER_ERRORS
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

CHECK_TIMEOUT_SECONDS: Final = 3.0
"""Timeout of a check, in seconds. Requesters wait a little longer for the reply."""

Probe = Callable[[], Awaitable[Mapping[str, str | None]]]
"""A function that checks dependencies of a service. It returns the problem of each by name; None if it is healthy."""
AnswerT = TypeVar("AnswerT")

_CONSUMER_PREFIX: Final = "consumer "


class ExaminedParts(Protocol):
    """The attributes of a service that `Diagnostics` uses."""

    instance: str
    health: Health
    settings: Settings
    bus: Bus

    @property
    def principal(self) -> Principal:
        """The service's name at the broker."""


class Diagnostics:
    """Replies to `examine` for one service. Kubernetes probes don't run its checks, because they may send requests."""

    def __init__(self, service: ExaminedParts, backlog: ConsumerLag) -> None:
        self._service = service
        self._backlog = backlog
        self._clock: Callable[[], datetime] = partial(datetime.now, UTC)
        self._probes: list[tuple[PartKind, Probe]] = []

    @property
    def request(self) -> type[Examine]:
        """The class of this service's request."""
        return REQUESTS[f"{self._service.principal}.examine"]  # type: ignore[return-value]  # found by its name

    def add(self, kind: PartKind, probe: Probe) -> None:
        """Add a check. An error of the broker, or a duration above `CHECK_TIMEOUT_SECONDS`, counts as no reply."""
        self._probes.append((kind, probe))

    async def answer(self, _request: IncomingRequest[Any]) -> Examination:
        """Reply to the request."""
        return await self.examine()

    async def examine(self) -> Examination:
        """The current state of the service."""
        service = self._service
        checking = [self._configuration_drifts(), *(self._probe(kind, probe) for kind, probe in self._probes)]
        part_lists, waiting = await asyncio.gather(
            asyncio.gather(*checking), _within(self._backlog.read(service.bus), list[ConsumerBacklog]())
        )
        return Examination(
            service=service.principal.value,
            version=version("sandherd"),
            instance=service.instance,
            now=self._clock(),
            credential_expires_at=self._credential_expiry(),
            parts=[*self._own_parts(), *(part for parts in part_lists for part in parts)],
            waiting=waiting,
        )

    def _own_parts(self) -> list[Part]:
        health, problems = self._service.health, self._service.health.problems()
        parts = [
            Part(
                kind=_kind_of(name),
                name=name.removeprefix(_CONSUMER_PREFIX),
                problem=problems.get(name),
                detail=health.details.get(name),
            )
            for name in health.parts()
        ]
        return parts + [
            Part(kind=PartKind.WARNING, name=name, problem=text) for name, text in health.warnings().items()
        ]

    async def _configuration_drifts(self) -> list[Part]:
        """The streams and consumers that differ from their declaration.

        If the broker does not respond, there is only a part named `all`.
        """
        unavailable = [Part(kind=PartKind.STREAM, name="all", problem="the broker does not respond")]
        return await _within(self._declaration_faults(), unavailable)

    async def _declaration_faults(self) -> list[Part]:
        faults = await check(self._service.bus.js, self._service.principal)
        return [Part(kind=PartKind.STREAM, name=fault.thing, problem=fault.problem) for fault in faults]

    async def _probe(self, kind: PartKind, probe: Probe) -> list[Part]:
        unavailable = {"all": f"no reply within {CHECK_TIMEOUT_SECONDS:g} s"}
        problems = await _within(probe(), unavailable)
        return [Part(kind=kind, name=name, problem=problem) for name, problem in problems.items()]

    def _credential_expiry(self) -> datetime | None:
        path = self._service.settings.credentials
        return bearer(path.read_text()).expires_at if path else None


def _kind_of(name: str) -> PartKind:
    return PartKind.CONSUMER if name.startswith(_CONSUMER_PREFIX) else PartKind.READINESS


async def _within(checking: Awaitable[AnswerT], default: AnswerT) -> AnswerT:
    """The result of `checking`, or `default` after `CHECK_TIMEOUT_SECONDS` seconds or an error of the broker.

    `checking` runs in a separate task, because nats-py may swallow a cancellation.
    """
    task = asyncio.ensure_future(checking)
    try:
        done, _ = await asyncio.wait([task], timeout=CHECK_TIMEOUT_SECONDS)
        return task.result() if done else default
    except BROKER_ERRORS:
        return default
    finally:
        await cancel_and_wait([task])
