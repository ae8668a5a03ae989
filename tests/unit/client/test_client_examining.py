"""What the doctor makes of what it sees."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import pytest

from sandherd.bus.identity.credentials import Bearer
from sandherd.client.cli import catalogue
from sandherd.client.cli.checks import Check, State
from sandherd.client.cli.examining import (
    judge_audit,
    judge_disk_limits,
    judge_holder,
    judge_isolation,
    judge_service,
    judge_skew,
    judge_version,
    unsaid,
)
from sandherd.contracts.requests import Audit, Catalogue, RuntimeView
from sandherd.contracts.subjects import Principal

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
BEARER = Bearer("U…", "client-default", Principal.CLIENT, "default", "_INBOX_U…")


def an_audit(*, missing: int = 0, unstored: int = 0, dead: int = 0) -> Audit:
    return Audit(
        sources=[],
        source_count=3,
        event_count=10,
        missing=missing,
        duplicates_refused=0,
        unstored=unstored,
        dead=dead,
    )


@pytest.mark.parametrize(
    ("left", "state"),
    [
        (None, State.RIGHT),
        (timedelta(days=1), State.RIGHT),
        (timedelta(minutes=5), State.WORTH_A_LOOK),
        (timedelta(0), State.WRONG),
        (timedelta(days=-1), State.WRONG),
    ],
)
def test_a_credential_is_judged_by_what_is_left(left: timedelta | None, state: State) -> None:
    """One that has expired is wrong, one that soon will is worth a look; both name a remedy."""
    check = judge_holder(replace(BEARER, expires_at=None if left is None else NOW + left), Path("x.creds"), NOW)
    assert check.state is state
    assert (check.remedy is not None) is (state is not State.RIGHT)


@pytest.mark.parametrize(
    ("version", "state"), [((2, 15, 1), State.RIGHT), ((2, 12, 0), State.RIGHT), ((2, 11, 9), State.WRONG)]
)
def test_an_old_broker_is_wrong(version: tuple[int, int, int], state: State) -> None:
    """A broker that lacks what leases need is found, with the version that has it."""
    check = judge_version(version, "nats://x", 1.0)
    assert check.state is state
    assert "nats-server" in check.found


@pytest.mark.parametrize(
    ("seconds", "state"), [(0, State.RIGHT), (-3, State.RIGHT), (6, State.WRONG), (-600, State.WRONG)]
)
def test_a_clock_that_is_off_is_wrong(seconds: float, state: State) -> None:
    """In either direction."""
    assert judge_skew(timedelta(seconds=seconds)).state is state


@pytest.mark.parametrize(
    ("audit", "name", "state"),
    [
        (an_audit(), "history", State.RIGHT),
        (an_audit(missing=1), "history", State.WRONG),
        (an_audit().model_copy(update={"unsaid": 1, "unsaid_sandboxes": ["sbx-1"]}), "history", State.WRONG),
        (an_audit().model_copy(update={"conflicts": 1}), "history", State.WRONG),
        (an_audit().model_copy(update={"implausible": 1}), "history", State.WRONG),
        (an_audit(unstored=20_000), "history lag", State.WORTH_A_LOOK),
        (an_audit(dead=2), "dead letters", State.WORTH_A_LOOK),
    ],
)
def test_the_history_is_judged_by_its_audit(audit: Audit, name: str, state: State) -> None:
    """A gap is wrong; a lag and dead letters are worth a look; each says what to do."""
    checks: dict[str, Check] = {check.name: check for check in judge_audit(audit)}
    assert checks[name].state is state
    assert all(check.remedy for check in checks.values() if check.state is not State.RIGHT)


@pytest.mark.parametrize(
    ("body", "ready", "state", "found"),
    [
        ("broker: ok", True, State.RIGHT, "http://x is ready"),
        ("broker: ok streams: look: EVENTS is 91% full", True, State.WORTH_A_LOOK, "EVENTS is 91% full"),
        ("broker: no connection", False, State.WRONG, "broker: no connection"),
    ],
)
def test_a_service_that_works_may_still_be_worth_a_look(body: str, ready: bool, state: State, found: str) -> None:
    """A stream that is nearly full makes no service wrong, but it is shown, with a remedy, before it is full."""
    check = judge_service("event-ingest", "http://x", body, ready=ready)
    assert check.state is state
    assert check.found.endswith(found)
    assert (check.remedy is not None) is (state is not State.RIGHT)


def test_what_was_put_aside_is_counted_and_shown_where_it_is(tmp_path: Path) -> None:
    """On the machine of a stack: how many sandboxes have something unsaid, where, and what becomes of it."""
    assert unsaid(tmp_path) == []
    (tmp_path / "sandboxes").mkdir()
    assert [check.state for check in unsaid(tmp_path)] == [State.RIGHT]
    for name in ("sbx-one", "sbx-two"):
        (tmp_path / "kept" / name).mkdir(parents=True)
    (check,) = unsaid(tmp_path)
    assert check.state is State.WORTH_A_LOOK
    assert check.found == f"2 ended sandboxes with events that could not be said, in {tmp_path / 'kept'}"
    assert check.remedy is not None
    assert "tried again" in check.remedy


@pytest.mark.parametrize(
    ("disks", "expected"),
    [
        ({"process": "none"}, [(State.WORTH_A_LOOK, "not limited in runtime process")]),
        ({"process": "none", "docker": "file system"}, [(State.WORTH_A_LOOK, "not limited in runtime process")]),
        ({"process": "file system", "docker": ""}, [(State.RIGHT, "limited by file system in runtime process")]),
        ({"docker": ""}, []),
    ],
)
def test_a_runtime_that_does_not_limit_the_disk_is_named(
    disks: dict[str, str], expected: list[tuple[State, str]]
) -> None:
    """Also beside one that does; a runtime that does not know is not judged."""
    checks = judge_disk_limits([RuntimeView(runtime=name, disk=disk) for name, disk in disks.items()])
    assert [(check.state, check.found) for check in checks] == expected
    assert all(check.remedy for check in checks if check.state is State.WORTH_A_LOOK)


def test_what_the_isolation_lacks_is_shown_by_both_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """`sandherd runtimes` below its table, `doctor` as a line for each, with a remedy; nothing of a runtime without."""
    golden = json.loads((files("sandherd.contracts") / "golden/v1/replies/spawner.list_runtimes.json").read_text())
    found = Catalogue.model_validate(golden["ok"])
    lacking = [(one.runtime, gap) for one in found.runtimes for gap in one.gaps]
    assert lacking
    catalogue.print_catalogue(found)
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{runtime}: {gap}" in text for runtime, gap in lacking)
    checks = judge_isolation(found.runtimes)
    assert [(check.name, check.found) for check in checks] == [(f"runtime {runtime}", gap) for runtime, gap in lacking]
    assert all(check.state is State.WORTH_A_LOOK and check.remedy for check in checks)
    assert judge_isolation([one.model_copy(update={"gaps": []}) for one in found.runtimes]) == []
