"""The checks of `sandherd doctor` that the services are asked for, over the broker: judged here, and asked below."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Final

from sandherd.client.cli.checks import Check, State
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, ServiceAwayError
from sandherd.contracts.requests import (
    Examination,
    Examine,
    ExamineEventIngest,
    ExamineMessageRelay,
    ExamineMonitor,
    ExamineSpawner,
    Part,
    PartKind,
    Waiting,
)
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS

ASKED: Final[tuple[type[Examine], ...]] = (
    ExamineSpawner,
    ExamineEventIngest,
    ExamineMonitor,
    ExamineMessageRelay,
)
MOST_SKEW: Final = timedelta(seconds=5)
SOON: Final = timedelta(days=7)
LONG: Final = 60.0
"""What has waited for so many seconds is not being handled."""
MANY: Final = 10_000
"""So many are more than a service gets through in some seconds."""

AWAY_REMEDY: Final = (
    "see that it runs, with `sandherd status`, `docker compose ps` or `kubectl get pods`, and what its log says"
)
_PROVISION: Final = (
    "run `sandherd provision` (`--identity` with the herd's keys, if it differs); on this machine `sandherd up`"
)
_REMEDIES: Final[Mapping[PartKind, str]] = {
    PartKind.READINESS: "see its log; what it rests on has a line of its own here",
    PartKind.STREAM: _PROVISION,
    PartKind.CONSUMER: (
        "restart the spawner, which creates missing consumers, or run `sandherd provision --identity` with the herd's "
        "keys; the service binds to it by itself then"
    ),
    PartKind.MIGRATIONS: "run `sandherd-event-ingest migrate` of this version, or start event-ingest again",
    PartKind.RUNTIME: "see that its engine or API runs, and that the spawner's host reaches it and is let in",
    PartKind.REMARK: "see that event-ingest and Postgres keep up; `sandherd audit` says what is not stored yet",
}
_DECLARED: Final = f"{len(STREAMS)} streams and {len(BUCKETS)} buckets are as declared"


@dataclass(frozen=True)
class Told:
    """What a service said of itself, and how far its clock is from ours."""

    examination: Examination
    skew: timedelta


Answers = Mapping[str, Told | HerdError]
"""By service."""


async def ask_all(connection: Connection) -> dict[str, Told | HerdError]:
    """Every service, side by side."""
    found = await asyncio.gather(*(_ask(connection, request) for request in ASKED))
    return {request.answered_by: told for request, told in zip(ASKED, found, strict=True)}


async def _ask(connection: Connection, request: type[Examine]) -> Told | HerdError:
    before = datetime.now(UTC)
    try:
        told = await connection.ask(request(), timeout=8)
    except HerdError as error:
        return error
    return Told(told, told.now - (before + (datetime.now(UTC) - before) / 2))


def judge(answers: Answers, now: datetime) -> list[Check]:
    """Every check that these answers allow."""
    told = {name: answer.examination for name, answer in answers.items() if isinstance(answer, Told)}
    parts = [part for one in told.values() for part in one.parts]
    whole = len(told) == len(answers)
    return [
        *(_service(name, answer) for name, answer in answers.items()),
        *_versions(told),
        *_credentials(told, now),
        _of_kind("streams", PartKind.STREAM, parts, _DECLARED, whole=whole),
        _of_kind("consumers", PartKind.CONSUMER, parts, f"{len(CONSUMERS)} consumers are heard", whole=whole),
        *_rested_on("migrations", PartKind.MIGRATIONS, parts, "all are applied"),
        *_rested_on("runtime", PartKind.RUNTIME, parts, "answers"),
        *_lags(told.values()),
        *_clock(answers),
    ]


def _service(name: str, answer: Told | HerdError) -> Check:
    """What a service says of its own parts; what it rests on has lines of its own."""
    if isinstance(answer, HerdError):
        own = None if isinstance(answer, ServiceAwayError) else answer.problem.remedy
        return Check(name, State.WRONG, answer.problem.message, own or AWAY_REMEDY)
    one = answer.examination
    for kind, state in ((PartKind.READINESS, State.WRONG), (PartKind.REMARK, State.WORTH_A_LOOK)):
        wrong = [part for part in one.parts if part.kind is kind and part.problem]
        if wrong:
            return Check(name, state, _listed(wrong), _REMEDIES[kind])
    return Check(name, State.RIGHT, f"version {one.version} is ready")


def _of_kind(name: str, kind: PartKind, parts: Iterable[Part], well: str, *, whole: bool) -> Check:
    wrong = [part for part in parts if part.kind is kind and part.problem]
    if wrong:
        return Check(name, State.WRONG, _listed(wrong), _REMEDIES[kind])
    if not whole:
        return Check(name, State.UNKNOWN, "not every service answers", AWAY_REMEDY)
    return Check(name, State.RIGHT, well)


def _rested_on(name: str, kind: PartKind, parts: Sequence[Part], well: str) -> Iterator[Check]:
    """A line for each; of a service that does not answer there is none."""
    for part in parts:
        if part.kind is kind:
            title = name if kind is PartKind.MIGRATIONS else f"{name} {part.name}"
            state = State.WRONG if part.problem else State.RIGHT
            yield Check(title, state, part.problem or well, _REMEDIES[kind] if part.problem else None)


def _listed(parts: Iterable[Part]) -> str:
    return "; ".join(dict.fromkeys(f"{part.name}: {part.problem}" for part in parts))


def _versions(told: Mapping[str, Examination]) -> Iterator[Check]:
    ours = version("sandherd")
    others = {name: one.version for name, one in told.items() if one.version != ours}
    if others:
        found = ", ".join(f"{name} is {other}" for name, other in others.items())
        remedy = "bring all to one version; one version apart works meanwhile"
        yield Check("versions", State.WORTH_A_LOOK, f"this is {ours}, {found}", remedy)


def _credentials(told: Mapping[str, Examination], now: datetime) -> Iterator[Check]:
    """Services' credentials; only those that run out are told."""
    for name, one in told.items():
        until = one.credential_expires_at
        if until is None or until - now > SOON:
            continue
        found = f"{name}'s is good until {until:%Y-%m-%d %H:%M} UTC"
        remedy = "make it anew with `sandherd identity init`, and give it to the service"
        yield Check("service credential", State.WRONG if until <= now else State.WORTH_A_LOOK, found, remedy)


def _lags(told: Iterable[Examination]) -> Iterator[Check]:
    for one in told:
        for waiting in one.waiting:
            yield judge_waiting(one.service, waiting)


def judge_waiting(service: str, waiting: Waiting) -> Check:
    """Whether a service gets through what is said to it."""
    name, left = f"lag {waiting.consumer}", waiting.pending + waiting.unacknowledged
    if waiting.still_seconds > LONG:
        found = f"{left} wait, the oldest for {waiting.still_seconds:.0f} s or longer"
        return Check(name, State.WRONG, found, f"see what {service}'s log says; what it rests on has a line here")
    if left > MANY:
        return Check(name, State.WORTH_A_LOOK, f"{left} wait", f"run another {service}; see what it rests on")
    return Check(name, State.RIGHT, f"{left} wait")


def _clock(answers: Answers) -> Iterator[Check]:
    """The one that differs most from ours."""
    skews = {name: answer.skew for name, answer in answers.items() if isinstance(answer, Told)}
    if not skews:
        return
    name = max(skews, key=lambda one: abs(skews[one]))
    seconds = abs(skews[name].total_seconds())
    if abs(skews[name]) > MOST_SKEW:
        remedy = "set the clock of that machine or of this one, as with `timedatectl set-ntp true`"
        yield Check("clock", State.WRONG, f"{name}'s and ours differ by {seconds:.0f} s", remedy)
    else:
        yield Check("clock", State.RIGHT, f"agrees with the services' to {max(seconds, 0.1):.1f} s")
