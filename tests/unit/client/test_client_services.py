"""What the doctor makes of what services say of themselves."""

from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import pytest

from sandherd.client.cli.checks import Check, State
from sandherd.client.cli.services import AWAY_REMEDY, Answers, Told, judge, judge_waiting
from sandherd.client.errors import HerdError, ServiceAwayError
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import Examination, Part, PartKind, Waiting

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def told(*parts: Part, skew: float = 0, **more: object) -> Told:
    fields = {
        "service": "monitor",
        "version": version("sandherd"),
        "instance": "one",
        "now": NOW,
        "parts": parts,
        **more,
    }
    return Told(Examination.model_validate(fields), timedelta(seconds=skew))


def judged(**answers: Told | HerdError) -> dict[str, Check]:
    given: Answers = {name.replace("_", "-"): answer for name, answer in answers.items()}
    return {check.name: check for check in judge(given, NOW)}


def test_who_does_not_answer_is_wrong_and_what_only_it_knows_is_unknown() -> None:
    """Nothing is called well that nobody has looked at."""
    found = judged(spawner=ServiceAwayError.named("spawner", "is not there"), monitor=told())
    assert (found["spawner"].state, found["spawner"].remedy) == (State.WRONG, AWAY_REMEDY)
    assert {found[name].state for name in ("streams", "consumers")} == {State.UNKNOWN}
    assert not any(name.startswith("runtime") for name in found)


def test_a_credential_that_may_not_ask_is_not_taken_for_a_service_that_is_away() -> None:
    """As a subscriber's: what helps is another credential, and not to look whether the service runs."""
    refused = HerdError.of(Code.REFUSED, "this credential may not say that", remedy="use a client's")
    found = judged(monitor=refused, spawner=told())
    assert (found["monitor"].state, found["monitor"].remedy) == (State.WRONG, "use a client's")
    assert found["streams"].state is State.UNKNOWN


@pytest.mark.parametrize(
    ("kind", "check", "state"),
    [
        (PartKind.READINESS, "monitor", State.WRONG),
        (PartKind.REMARK, "monitor", State.WORTH_A_LOOK),
        (PartKind.STREAM, "streams", State.WRONG),
        (PartKind.CONSUMER, "consumers", State.WRONG),
        (PartKind.MIGRATIONS, "migrations", State.WRONG),
        (PartKind.RUNTIME, "runtime x", State.WRONG),
    ],
)
def test_each_kind_of_fault_turns_its_own_check_with_a_remedy(kind: PartKind, check: str, state: State) -> None:
    """And no other; without it all are well."""
    name = "x" if kind is PartKind.RUNTIME else "thing"
    found = judged(monitor=told(Part(kind=kind, name=name, problem="broken")))
    assert {one.name for one in found.values() if one.state is not State.RIGHT} == {check}
    assert found[check].state is state
    assert "broken" in found[check].found
    assert found[check].remedy
    well = judged(monitor=told(Part(kind=kind, name=name)))
    assert {one.state for one in well.values()} == {State.RIGHT}


@pytest.mark.parametrize(
    ("seconds", "state"), [(0, State.RIGHT), (4, State.RIGHT), (6, State.WRONG), (-600, State.WRONG)]
)
def test_the_clock_that_differs_most_is_judged(seconds: float, state: State) -> None:
    """In either direction."""
    found = judged(monitor=told(), spawner=told(skew=seconds))
    assert found["clock"].state is state
    assert (found["clock"].remedy is not None) is (state is State.WRONG)


@pytest.mark.parametrize(
    ("left", "state"),
    [(None, None), (timedelta(days=30), None), (timedelta(days=1), State.WORTH_A_LOOK), (timedelta(0), State.WRONG)],
)
def test_a_services_credential_is_told_before_it_ends(left: timedelta | None, state: State | None) -> None:
    """A week ahead; one that does not end is not worth a line."""
    found = judged(monitor=told(credential_expires_at=None if left is None else NOW + left))
    check = found.get("service credential")
    assert (check.state if check else None) is state


def test_another_version_is_told() -> None:
    """By service; it works meanwhile."""
    found = judged(monitor=told(version="0.0.9"), spawner=told())
    assert found["versions"].state is State.WORTH_A_LOOK
    assert found["versions"].found.endswith("monitor is 0.0.9")


@pytest.mark.parametrize(
    ("pending", "still", "state"),
    [(0, 0, State.RIGHT), (500, 59, State.RIGHT), (1, 61, State.WRONG), (20_000, 2, State.WORTH_A_LOOK)],
)
def test_what_waits_is_judged_by_its_age_before_its_number(pending: int, still: float, state: State) -> None:
    """Much that is being handled is worth a look; anything that is not being handled is wrong."""
    waiting = Waiting(consumer="event-ingest", pending=pending, unacknowledged=0, still_seconds=still)
    check = judge_waiting("event-ingest", waiting)
    assert check.state is state
    assert (check.remedy is not None) is (state is not State.RIGHT)
