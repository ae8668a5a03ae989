"""What a service says of itself when it is asked how it is: its parts, what it rests on, and what waits for it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeVar

import nats.errors
import nats.js.errors

from sandherd.bus.answering import Asked
from sandherd.bus.backlog import Backlog
from sandherd.bus.identity import bearer
from sandherd.bus.provision import check
from sandherd.bus.together import end
from sandherd.contracts.requests import REQUESTS, Examination, Examine, Part, PartKind, Waiting

if TYPE_CHECKING:
    from sandherd.bus.service import Service

ENOUGH: Final = 3.0
"""What has not answered within so many seconds is said not to; an asker waits a little longer."""

Probe = Callable[[], Awaitable[Mapping[str, str | None]]]
"""Looks at what a service rests on: by name None if it is well, else what is wrong."""
AnswerT = TypeVar("AnswerT")

_CONSUMER: Final = "consumer "
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


class Examining:
    """Answers `examine` for one service. What takes asking is asked only then, and never for a probe of a cluster."""

    def __init__(self, service: "Service", backlog: Backlog) -> None:
        self._service = service
        self._backlog = backlog
        self._clock: Callable[[], datetime] = partial(datetime.now, UTC)
        self._probes: list[tuple[PartKind, Probe]] = []

    @property
    def request(self) -> type[Examine]:
        """What it is asked."""
        return REQUESTS[f"{self._service.principal}.examine"]  # type: ignore[return-value]  # found by its name

    def add(self, kind: PartKind, probe: Probe) -> None:
        """From now on this is looked at, too. It is waited for `ENOUGH` seconds; what it raises is a fault."""
        self._probes.append((kind, probe))

    async def answer(self, _asked: Asked[Any]) -> Examination:
        """How the service is, looked at now."""
        service = self._service
        looking = [self._declared(), *(self._look(kind, probe) for kind, probe in self._probes)]
        found, waiting = await asyncio.gather(
            asyncio.gather(*looking), _within(self._backlog.look(service.bus), list[Waiting]())
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
            Part(kind=_kind_of(name), name=name.removeprefix(_CONSUMER), problem=problems.get(name))
            for name in health.parts()
        ]
        return parts + [Part(kind=PartKind.REMARK, name=name, problem=text) for name, text in health.remarks().items()]

    async def _declared(self) -> list[Part]:
        """The streams and consumers that are other than declared; one line where the broker does not say."""
        silent = [Part(kind=PartKind.STREAM, name="all", problem="the broker does not say how they are")]
        return await _within(self._faults(), silent)

    async def _faults(self) -> list[Part]:
        faults = await check(self._service.bus.js, self._service.principal)
        return [Part(kind=PartKind.STREAM, name=fault.thing, problem=fault.problem) for fault in faults]

    async def _look(self, kind: PartKind, probe: Probe) -> list[Part]:
        silent = {"all": f"no answer within {ENOUGH:g} s"}
        found = await _within(probe(), silent)
        return [Part(kind=kind, name=name, problem=problem) for name, problem in found.items()]

    def _expires(self) -> datetime | None:
        path = self._service.settings.credentials
        return bearer(path.read_text()).expires_at if path else None


def _kind_of(name: str) -> PartKind:
    return PartKind.CONSUMER if name.startswith(_CONSUMER) else PartKind.READINESS


async def _within(looking: Awaitable[AnswerT], otherwise: AnswerT) -> AnswerT:
    """What comes of it in time. Waited for from outside: within it nats-py may swallow a cancellation."""
    task = asyncio.ensure_future(looking)
    try:
        done, _ = await asyncio.wait([task], timeout=ENOUGH)
        return task.result() if done else otherwise
    except _UNANSWERED:
        return otherwise
    finally:
        await end([task])
