"""Checks of the doctor made of the services' reports."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import pytest

from sandherd.client.doctor.check import Check, CheckState
from sandherd.client.doctor.database import with_failed_requests
from sandherd.client.doctor.services import UNAVAILABLE_REMEDY, Answers, ServiceReport, check_waiting, service_checks
from sandherd.client.errors import HerdError, ServiceUnavailableError
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import (
    DATABASE,
    FORGE_CREDENTIALS,
    GIT,
    MIRRORS,
    ConsumerBacklog,
    Examination,
    Part,
    PartKind,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def service_report(*parts: Part, skew: float = 0, **more: object) -> ServiceReport:
    fields = {
        "service": "monitor",
        "version": version("sandherd"),
        "instance": "one",
        "now": NOW,
        "parts": parts,
        **more,
    }
    return ServiceReport(Examination.model_validate(fields), timedelta(seconds=skew))


def checked(**answers: ServiceReport | HerdError) -> dict[str, Check]:
    given: Answers = {name.replace("_", "-"): answer for name, answer in answers.items()}
    return {check.name: check for check in service_checks(given, NOW)}


def test_unreachable_service_is_wrong_and_its_checks_are_unknown() -> None:
    """A check that could not run is not reported as right."""
    found = checked(spawner=ServiceUnavailableError.named("spawner", "is unavailable"), monitor=service_report())
    assert (found["spawner"].state, found["spawner"].remedy) == (CheckState.WRONG, UNAVAILABLE_REMEDY)
    assert {found[name].state for name in ("streams", "consumers")} == {CheckState.UNKNOWN}
    assert not any(name.startswith("runtime") for name in found)


def test_refused_credential_is_distinguished_from_an_unreachable_service() -> None:
    """For a subscriber's credential, the remedy is another credential."""
    refused = HerdError.of(Code.REFUSED, "this credential has no permission for that", remedy="use a client's")
    found = checked(monitor=refused, spawner=service_report())
    assert (found["monitor"].state, found["monitor"].remedy) == (CheckState.WRONG, "use a client's")
    assert found["streams"].state is CheckState.UNKNOWN


def test_database_has_its_name_and_address() -> None:
    """Event-ingest reports them, but not in earlier versions. Without event-ingest, the database is unknown."""
    part = Part(kind=PartKind.READINESS, name=DATABASE, detail="database past at db:5432")
    reports = {
        text: service_report(one)
        for text, one in {"new": part, "old": part.model_copy(update={"detail": None})}.items()
    }
    found = {text: checked(event_ingest=report)["database"] for text, report in reports.items()}
    assert (found["new"].state, found["new"].found) == (CheckState.RIGHT, "database past at db:5432 responds")
    assert (found["old"].state, found["old"].found) == (CheckState.RIGHT, "responds")
    unavailable_check = checked(event_ingest=ServiceUnavailableError.named("event-ingest", "is unavailable"))[
        "database"
    ]
    assert (unavailable_check.state, unavailable_check.remedy is not None) == (CheckState.UNKNOWN, True)


def test_database_that_responds_and_fails_requests_is_an_error() -> None:
    """This happens if its files were moved: `ok` would contradict `database is unavailable`."""
    well = Check("database", CheckState.RIGHT, "database past at db responds")
    failed = Check("history", CheckState.WRONG, "the history's database is unavailable (could not open file)")
    other = Check("history", CheckState.WRONG, "1 event is missing")
    (found, stored) = with_failed_requests([well, failed])
    assert (found.state, stored) == (CheckState.WRONG, failed)
    assert found.found == f"database past at db responds, but requests fail: {failed.found}"
    assert "files" in str(found.remedy)
    assert with_failed_requests([well, other]) == [well, other]
    unavailable = replace(well, state=CheckState.WRONG)
    assert with_failed_requests([unavailable, failed]) == [unavailable, failed]


def test_unusable_plugin_has_its_own_remedy() -> None:
    """The remedy is not that of a history that lags."""
    found = checked(
        spawner=service_report(Part(kind=PartKind.WARNING, name="harness moon", problem="of acme-moon 1.0: broken"))
    )
    assert found["spawner"].state is CheckState.WARNING
    assert "acme-moon 1.0" in found["spawner"].found
    assert "uninstall it" in str(found["spawner"].remedy)


def test_each_problem_of_repositories_has_its_own_remedy() -> None:
    """Git to be installed, a folder to be made writable; both if both are wrong."""
    parts = [Part(kind=PartKind.WARNING, name=name, problem="is missing") for name in (GIT, MIRRORS, FORGE_CREDENTIALS)]
    wanted = (parts[:1], parts[1:2], parts[:2], parts[2:])
    git, folder, both, file = (checked(spawner=service_report(*some))["spawner"] for some in wanted)
    assert {git.state, folder.state, both.state, file.state} == {CheckState.WARNING}
    assert "readable" in str(file.remedy)
    assert "install git" in str(git.remedy)
    assert "writable" in str(folder.remedy)
    assert both.remedy == f"{git.remedy}; {folder.remedy}"


@pytest.mark.parametrize(
    ("kind", "check", "state"),
    [
        (PartKind.READINESS, "monitor", CheckState.WRONG),
        (PartKind.WARNING, "monitor", CheckState.WARNING),
        (PartKind.STREAM, "streams", CheckState.WRONG),
        (PartKind.CONSUMER, "consumers", CheckState.WRONG),
        (PartKind.MIGRATIONS, "migrations", CheckState.WRONG),
        (PartKind.RUNTIME, "runtime x", CheckState.WRONG),
    ],
)
def test_each_fault_fails_its_own_check_with_a_remedy(kind: PartKind, check: str, state: CheckState) -> None:
    """No other check fails; without a fault all are right."""
    name = "x" if kind is PartKind.RUNTIME else "thing"
    found = checked(monitor=service_report(Part(kind=kind, name=name, problem="broken")))
    assert {one.name for one in found.values() if one.state is not CheckState.RIGHT} == {check}
    assert found[check].state is state
    assert "broken" in found[check].found
    assert found[check].remedy
    well = checked(monitor=service_report(Part(kind=kind, name=name)))
    assert {one.state for one in well.values()} == {CheckState.RIGHT}


@pytest.mark.parametrize(
    ("seconds", "state"),
    [(0, CheckState.RIGHT), (4, CheckState.RIGHT), (6, CheckState.WRONG), (-600, CheckState.WRONG)],
)
def test_largest_clock_skew_is_judged(seconds: float, state: CheckState) -> None:
    """Both directions count."""
    found = checked(monitor=service_report(), spawner=service_report(skew=seconds))
    assert found["clock"].state is state
    assert (found["clock"].remedy is not None) is (state is CheckState.WRONG)


@pytest.mark.parametrize(
    ("left", "state"),
    [
        (None, None),
        (timedelta(days=30), None),
        (timedelta(days=1), CheckState.WARNING),
        (timedelta(0), CheckState.WRONG),
    ],
)
def test_expiry_of_service_credential_is_reported(left: timedelta | None, state: CheckState | None) -> None:
    """The warning comes a week ahead; a credential without an expiry has no line."""
    found = checked(monitor=service_report(credential_expires_at=None if left is None else NOW + left))
    check = found.get("service credential")
    assert (check.state if check else None) is state


def test_other_version_is_a_warning() -> None:
    """The warning names the service."""
    found = checked(monitor=service_report(version="0.0.9"), spawner=service_report())
    assert found["versions"].state is CheckState.WARNING
    assert found["versions"].found.endswith("monitor is 0.0.9")


@pytest.mark.parametrize(
    ("pending", "still", "state"),
    [
        (0, 0, CheckState.RIGHT),
        (500, 59, CheckState.RIGHT),
        (1, 61, CheckState.WRONG),
        (20_000, 2, CheckState.WARNING),
    ],
)
def test_backlog_is_judged_by_age_before_size(pending: int, still: float, state: CheckState) -> None:
    """A large backlog that moves is a warning; any that stands still is an error."""
    waiting = ConsumerBacklog(consumer="event-ingest", pending=pending, unacknowledged=0, still_seconds=still)
    check = check_waiting("event-ingest", waiting)
    assert check.state is state
    assert (check.remedy is not None) is (state is not CheckState.RIGHT)
