"""The checks of services, based on their reports, which are requested over the broker."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Final

from sandherd.client.connection import Connection
from sandherd.client.doctor.check import Check, CheckState
from sandherd.client.doctor.database import REMEDY as DATABASE_REMEDY
from sandherd.client.doctor.database import check_database, is_database
from sandherd.client.errors import HerdError, ServiceUnavailableError
from sandherd.contracts.requests import (
    BROKER_DATA,
    DATABASE,
    FORGE_CREDENTIALS,
    GIT,
    MIRRORS,
    ConsumerBacklog,
    Examination,
    Examine,
    ExamineEventIngest,
    ExamineGateway,
    ExamineMessageRelay,
    ExamineMonitor,
    ExamineSpawner,
    Part,
    PartKind,
)
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS

EXAMINATIONS: Final[tuple[type[Examine], ...]] = (
    ExamineSpawner,
    ExamineEventIngest,
    ExamineMonitor,
    ExamineMessageRelay,
    ExamineGateway,
)
MAX_SKEW: Final = timedelta(seconds=5)
"""Maximum difference between the clocks of a service and of this machine."""
EXPIRY_WARNING_TIME: Final = timedelta(days=7)
"""The time before a credential's end in which there is a warning."""
MAX_WAITING_SECONDS: Final = 60.0
"""Seconds after which a waiting message counts as not being handled."""
MAX_WAITING_MESSAGES: Final = 10_000
"""The number of waiting messages above which a service does not keep up, because it needs many seconds for them."""

EVENT_INGEST: Final = ExamineEventIngest.answered_by
UNAVAILABLE_REMEDY: Final = "check that it runs, and see its log"
_INCOMPLETE_REMEDY: Final = "check that each service runs, and see the log of the one that does not reply"
STREAM_REMEDY: Final = "check that event-ingest and Postgres keep up, and audit the history"
_REMEDIES: Final[Mapping[PartKind, str]] = {
    PartKind.READINESS: "see its log; its dependencies are listed as separate checks",
    PartKind.STREAM: "provision the herd",
    PartKind.CONSUMER: (
        "restart the spawner, which creates missing consumers, or provision the herd; the service binds to it by "
        "itself then"
    ),
    PartKind.MIGRATIONS: "restart event-ingest, or apply the migrations of this version",
    PartKind.RUNTIME: "check that its engine or API runs, and that the spawner's host reaches it and has access",
    PartKind.WARNING: STREAM_REMEDY,
}
_WAITS_FOR_DATABASE: Final = "not ready: it waits for the database, which has a check of its own"
_DATABASE_CHECK_REMEDY: Final = "fix the check `database`; the service then continues by itself"
_UNREADABLE_MIGRATIONS: Final = ("unknown:", "no reply")
"""How the problem of migrations begins if the database did not respond, or not in time."""
_LOST_REMEDY: Final = (
    "restore broker and history from one backup (docs/backup.md); without a backup, list the lost tasks, and submit "
    "them again"
)
_WARNING_REMEDIES: Final[Mapping[str, str]] = {
    "harness ": "update the plugin's distribution or uninstall it, and restart the spawner",
    GIT: "install git 2.31 or later on the spawner's machine, in a folder of its PATH; until then it refuses tasks "
    "with a repository",
    FORGE_CREDENTIALS: "make the file readable for the spawner's user; it is read for each use",
    MIRRORS: "make the folder writable for the spawner's user, and free space on its file system",
}
"""The remedy of a warning, by the text that the warning's name starts with."""
_ALL_DECLARED_TEXT: Final = f"{len(STREAMS)} streams and {len(BUCKETS)} buckets are as declared"


@dataclass(frozen=True)
class ServiceReport:
    """The report of a service, and the difference between its clock and the clock of this machine."""

    examination: Examination
    skew: timedelta


Answers = Mapping[str, ServiceReport | HerdError]
"""The report or the error of each service, by its name."""


async def request_reports(
    connection: Connection, requests: Sequence[type[Examine]] = EXAMINATIONS
) -> dict[str, ServiceReport | HerdError]:
    """Request a report from each service, concurrently."""
    reports = await asyncio.gather(*(_request_report(connection, request) for request in requests))
    return {request.answered_by: report for request, report in zip(requests, reports, strict=True)}


def remedy_of(error: HerdError) -> str | None:
    """The remedy for a service that has refused a request, or did not reply."""
    return UNAVAILABLE_REMEDY if isinstance(error, ServiceUnavailableError) else error.problem.remedy


async def _request_report(connection: Connection, request: type[Examine]) -> ServiceReport | HerdError:
    sent_at = datetime.now(UTC)
    try:
        report = await connection.request(request(), timeout=8)
    except HerdError as error:
        return error
    return ServiceReport(report, report.now - (sent_at + (datetime.now(UTC) - sent_at) / 2))


def service_checks(answers: Answers, now: datetime) -> list[Check]:
    """All checks that are based on these replies."""
    reports = {name: answer.examination for name, answer in answers.items() if isinstance(answer, ServiceReport)}
    parts = [part for examination in reports.values() for part in examination.parts]
    complete = len(reports) == len(answers)
    return [
        *check_database(parts, reported=not isinstance(answers.get(EVENT_INGEST), HerdError)),
        *(_check_service(name, answer) for name, answer in answers.items()),
        *_check_versions(reports),
        *_check_credentials(reports, now),
        _check_of_kind("streams", PartKind.STREAM, parts, _ALL_DECLARED_TEXT, complete=complete),
        _check_of_kind(
            "consumers", PartKind.CONSUMER, parts, f"all {len(CONSUMERS)} consumers are active", complete=complete
        ),
        *_dependency_checks("migrations", PartKind.MIGRATIONS, parts, "all applied"),
        *_dependency_checks("runtime", PartKind.RUNTIME, parts, "responds"),
        *_lost_data(parts),
        *_check_lags(reports.values()),
        *_check_clock(answers),
    ]


def _check_service(name: str, answer: ServiceReport | HerdError) -> Check:
    """The check of a service itself. Its dependencies have separate checks."""
    if isinstance(answer, HerdError):
        return Check(name, CheckState.WRONG, answer.problem.message, remedy_of(answer) or UNAVAILABLE_REMEDY)
    examination = answer.examination
    parts = [part for part in examination.parts if part.problem and part.name != BROKER_DATA]
    for kind, state in ((PartKind.READINESS, CheckState.WRONG), (PartKind.WARNING, CheckState.WARNING)):
        wrong = [part for part in parts if part.kind is kind and part.name != DATABASE]
        if wrong:
            return Check(name, state, _list_text(wrong), "; ".join(dict.fromkeys(map(_own_remedy, wrong))))
    if any(is_database(part) for part in parts):
        return Check(name, CheckState.WARNING, _WAITS_FOR_DATABASE, _DATABASE_CHECK_REMEDY)
    return Check(name, CheckState.RIGHT, f"version {examination.version} is ready")


def _own_remedy(part: Part) -> str:
    """The remedy for a problem of a service itself."""
    matching_remedies = (remedy for name, remedy in _WARNING_REMEDIES.items() if part.name.startswith(name))
    return next(matching_remedies, _REMEDIES[part.kind]) if part.kind is PartKind.WARNING else _REMEDIES[part.kind]


def _check_of_kind(name: str, kind: PartKind, parts: Iterable[Part], ok_text: str, *, complete: bool) -> Check:
    wrong = [part for part in parts if part.kind is kind and part.problem]
    if wrong:
        return Check(name, CheckState.WRONG, _list_text(wrong), _REMEDIES[kind])
    if not complete:
        return Check(name, CheckState.UNKNOWN, "not every service replies", _INCOMPLETE_REMEDY)
    return Check(name, CheckState.RIGHT, ok_text)


def _dependency_checks(name: str, kind: PartKind, parts: Sequence[Part], ok_text: str) -> Iterator[Check]:
    """A check for each dependency of this kind; none if the service does not reply."""
    for part in parts:
        if part.kind is kind:
            title = name if kind is PartKind.MIGRATIONS else f"{name} {part.name}"
            state = CheckState.WRONG if part.problem else CheckState.RIGHT
            yield Check(title, state, part.problem or ok_text, _remedy(part) if part.problem else None)


def _remedy(part: Part) -> str:
    unreachable = part.kind is PartKind.MIGRATIONS and (part.problem or "").startswith(_UNREADABLE_MIGRATIONS)
    return DATABASE_REMEDY if unreachable else _REMEDIES[part.kind]


def _lost_data(parts: Iterable[Part]) -> Iterator[Check]:
    """An error if the broker lacks events that the history has; otherwise no check."""
    for part in parts:
        if part.name == BROKER_DATA and part.problem:
            yield Check(BROKER_DATA, CheckState.WRONG, part.problem, _LOST_REMEDY)


def _list_text(parts: Iterable[Part]) -> str:
    return "; ".join(dict.fromkeys(f"{part.name}: {part.problem}" for part in parts))


def _check_versions(reports: Mapping[str, Examination]) -> Iterator[Check]:
    own_version = version("sandherd")
    others = {name: examination.version for name, examination in reports.items() if examination.version != own_version}
    if others:
        text = ", ".join(f"{name} is {other}" for name, other in others.items())
        remedy = "update all to one version; one version apart works meanwhile"
        yield Check("versions", CheckState.WARNING, f"this is {own_version}, {text}", remedy)


def _check_credentials(reports: Mapping[str, Examination], now: datetime) -> Iterator[Check]:
    """A check for each credential of a service that expires within a week."""
    for name, examination in reports.items():
        until = examination.credential_expires_at
        if until is None or until - now > EXPIRY_WARNING_TIME:
            continue
        text = f"the credential of {name} is valid until {until:%Y-%m-%d %H:%M} UTC"
        remedy = "create a new credential, and give it to the service"
        yield Check("service credential", CheckState.WRONG if until <= now else CheckState.WARNING, text, remedy)


def _check_lags(reports: Iterable[Examination]) -> Iterator[Check]:
    for examination in reports:
        for waiting in examination.waiting:
            yield check_waiting(examination.service, waiting)


def check_waiting(service: str, waiting: ConsumerBacklog) -> Check:
    """Whether a service keeps up with its messages."""
    name, waiting_messages = f"lag {waiting.consumer}", waiting.pending + waiting.unacknowledged
    if waiting.still_seconds > MAX_WAITING_SECONDS:
        text = f"{waiting_messages} waiting, the oldest for {waiting.still_seconds:.0f} s or longer"
        return Check(name, CheckState.WRONG, text, f"see {service}'s log, and the checks of its dependencies")
    if waiting_messages > MAX_WAITING_MESSAGES:
        return Check(
            name, CheckState.WARNING, f"{waiting_messages} waiting", f"run another {service}; check its dependencies"
        )
    return Check(name, CheckState.RIGHT, f"{waiting_messages} waiting")


def _check_clock(answers: Answers) -> Iterator[Check]:
    """A comparison of this machine's clock and the service's clock that differs most."""
    skews = {name: answer.skew for name, answer in answers.items() if isinstance(answer, ServiceReport)}
    if not skews:
        return
    name = max(skews, key=lambda service: abs(skews[service]))
    seconds = abs(skews[name].total_seconds())
    if abs(skews[name]) > MAX_SKEW:
        remedy = "set the clock of that machine or of this one"
        yield Check("clock", CheckState.WRONG, f"{name}'s and ours differ by {seconds:.0f} s", remedy)
    else:
        yield Check("clock", CheckState.RIGHT, f"agrees with the services' to {max(seconds, 0.1):.1f} s")
