"""Checks of the doctor and their states."""

import ast
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import pytest

from sandherd.bus.identity.credentials import Bearer
from sandherd.cli.doctor.checks import check_credential, check_service, check_skew, check_unpublished, examine
from sandherd.cli.doctor.local_stack import check_processes
from sandherd.cli.doctor.remedies import COMMANDS, with_commands
from sandherd.cli.render import catalogue
from sandherd.client.context import FROM_CONTEXT, Context
from sandherd.client.doctor.audit import audit_faults, check_audit
from sandherd.client.doctor.check import Check, CheckState
from sandherd.client.doctor.herd import check_version
from sandherd.client.doctor.runtimes import check_disk_limits, check_isolation
from sandherd.contracts.requests import Audit, Catalogue, RuntimeView
from sandherd.contracts.subjects import Principal
from sandherd.processes import find

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
        (None, CheckState.RIGHT),
        (timedelta(days=1), CheckState.RIGHT),
        (timedelta(minutes=5), CheckState.WARNING),
        (timedelta(0), CheckState.WRONG),
        (timedelta(days=-1), CheckState.WRONG),
    ],
)
def test_credential_is_judged_by_its_remaining_life(left: timedelta | None, state: CheckState) -> None:
    """An expired credential is an error, one that expires soon a warning; both name a remedy."""
    check = check_credential(replace(BEARER, expires_at=None if left is None else NOW + left), Path("x.creds"), NOW)
    assert check.state is state
    assert (check.remedy is not None) is (state is not CheckState.RIGHT)


@pytest.mark.parametrize(
    ("version", "state"),
    [((2, 15, 1), CheckState.RIGHT), ((2, 12, 0), CheckState.RIGHT), ((2, 11, 9), CheckState.WRONG)],
)
def test_old_broker_is_wrong(version: tuple[int, int, int], state: CheckState) -> None:
    """A broker that lacks what leases need is found, with the version that has it."""
    check = check_version(version, "nats://x", 1.0)
    assert check.state is state
    assert "nats-server" in check.found


@pytest.mark.parametrize(
    ("seconds", "state"),
    [(0, CheckState.RIGHT), (-3, CheckState.RIGHT), (6, CheckState.WRONG), (-600, CheckState.WRONG)],
)
def test_skewed_clock_is_wrong(seconds: float, state: CheckState) -> None:
    """Both directions count."""
    assert check_skew(timedelta(seconds=seconds)).state is state


@pytest.mark.parametrize(
    ("audit", "name", "state"),
    [
        (an_audit(), "history", CheckState.RIGHT),
        (an_audit(missing=1), "history", CheckState.WRONG),
        (an_audit().model_copy(update={"unsaid": 1, "unsaid_sandboxes": ["sbx-1"]}), "history", CheckState.WRONG),
        (an_audit().model_copy(update={"conflicts": 1}), "history", CheckState.WRONG),
        (an_audit().model_copy(update={"implausible": 1}), "history", CheckState.WRONG),
        (an_audit(unstored=20_000), "history lag", CheckState.WARNING),
        (an_audit(dead=2), "dead letters", CheckState.WARNING),
    ],
)
def test_history_is_judged_by_its_audit(audit: Audit, name: str, state: CheckState) -> None:
    """A gap is wrong; a lag and dead letters are warnings; each has a remedy."""
    checks: dict[str, Check] = {check.name: check for check in check_audit(audit)}
    assert checks[name].state is state
    assert all(check.remedy for check in checks.values() if check.state is not CheckState.RIGHT)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["sbx-1"], "1 sandbox has ended without a last event of the agent (sbx-1): "),
        (["sbx-1", "sbx-2"], "2 sandboxes have ended without a last event of the agent (sbx-1, sbx-2): "),
    ],
)
def test_sandbox_without_a_last_event_is_explained(names: list[str], found: str) -> None:
    """In correct English, with what is lost, and that a restore is an expected cause of it."""
    audit = an_audit().model_copy(update={"unsaid": len(names), "unsaid_sandboxes": names})
    (text,) = audit_faults(audit)
    assert text.startswith(f"{found}events that were not published by then are lost")
    assert "after a restore this is expected of agents that ran during the backup" in text


def recorded(home: Path, *, supervisor: bool, phase: str = "ready") -> None:
    """A process as a supervisor records it. A running one is this process; an ended one has its id and another mark."""
    ours = find(os.getpid())
    assert ours is not None
    running, ended = ({"pid": os.getpid(), "mark": mark} for mark in (ours.mark, "other"))
    processes = {"nats": running, "postgres": ended, "event-ingest": {**ended, "problem": "out of memory"}}
    record = {"phase": phase, "supervisor": running if supervisor else ended, "processes": processes}
    (home / "run").mkdir(exist_ok=True)
    (home / "run" / "state.json").write_text(json.dumps(record))


def test_each_process_of_a_stack_that_does_not_run_has_a_row(tmp_path: Path) -> None:
    """The supervisor has a row, too. Without it the remedy is `up`; otherwise it restarts the process."""
    assert check_processes(tmp_path) == []
    recorded(tmp_path, supervisor=False)
    checks = check_processes(tmp_path)
    assert [check.name for check in checks] == ["process supervisor", "process postgres", "process event-ingest"]
    assert {(check.state, check.found) for check in checks} == {(CheckState.WRONG, "not running")}
    assert all("`sandherd up`" in str(check.remedy) for check in checks)
    recorded(tmp_path, supervisor=True)
    assert [str(check.remedy).partition("see ")[2] for check in check_processes(tmp_path)] == [
        "`sandherd services logs postgres`", "`sandherd services logs event-ingest`"
    ]  # fmt: skip
    recorded(tmp_path, supervisor=False, phase="stopped")
    assert check_processes(tmp_path) == []


async def test_processes_are_those_of_the_herd_that_is_examined(tmp_path: Path) -> None:
    """A herd elsewhere has nothing to do with a stack of this machine. Each process has one row."""
    recorded(tmp_path, supervisor=False)
    where = Context(nats_url="nats://127.0.0.1:1", credentials=None, project="default", home=tmp_path)
    local = replace(where, sources={"nats_url": FROM_CONTEXT})
    names = {
        one: [check.name for check in await examine(context, NOW) if check.name.startswith("process ")]
        for one, context in {"elsewhere": where, "local": local}.items()
    }
    assert names["local"] == ["process supervisor", "process postgres", "process event-ingest"]
    assert names["elsewhere"] == ["process event-ingest"]


@pytest.mark.parametrize("phrase", COMMANDS)
def test_phrase_with_a_command_is_in_a_remedy_of_a_check(phrase: str) -> None:
    """A remedy whose words change would lose its command."""
    sources = [Path(str(file)).read_text() for file in files("sandherd.client.doctor").iterdir() if file.is_file()]
    texts = [node.value for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    assert any(phrase in text for text in texts if isinstance(text, str))


@pytest.mark.parametrize(
    ("remedy", "elsewhere", "local"),
    [
        (
            "check that it runs, and see its log",
            "check that it runs (`sandherd status`, `docker compose ps` or `kubectl get pods`), and see its log",
            "check that it runs (`sandherd status`), and see its log",
        ),
        (
            "check that each service runs",
            "check that each service runs (`sandherd status`, `docker compose ps` or `kubectl get pods`)",
            "check that each service runs (`sandherd status`)",
        ),
        (
            "check that Postgres runs",
            "check that Postgres runs (for a local stack `sandherd status`)",
            "check that Postgres runs (`sandherd status`)",
        ),
        ("audit the history", "audit the history (`sandherd audit`)", "audit the history (`sandherd audit`)"),
    ],
)
def test_remedy_of_a_local_stack_names_its_own_commands(remedy: str, elsewhere: str, local: str) -> None:
    """A remedy does not name the commands of Docker and Kubernetes."""
    assert (with_commands(remedy), with_commands(remedy, local=True)) == (elsewhere, local)


@pytest.mark.parametrize(
    ("body", "ready", "state", "found"),
    [
        ("broker: ok", True, CheckState.RIGHT, "http://x is ready"),
        ("broker: ok streams: look: EVENTS is 91% full", True, CheckState.WARNING, "EVENTS is 91% full"),
        ("broker: no connection", False, CheckState.WRONG, "broker: no connection"),
    ],
)
def test_ready_service_may_have_a_warning(body: str, ready: bool, state: CheckState, found: str) -> None:
    """A nearly full stream makes no service wrong, but is shown, with a remedy, before it is full."""
    check = check_service("event-ingest", "http://x", body, ready=ready)
    assert check.state is state
    assert check.found.endswith(found)
    assert (check.remedy is not None) is (state is not CheckState.RIGHT)


def test_quarantined_sandboxes_are_counted_with_their_folder(tmp_path: Path) -> None:
    """On the machine of a stack, the check names how many sandboxes have unpublished events, and where."""
    assert check_unpublished(tmp_path) == []
    (tmp_path / "sandboxes").mkdir()
    assert [check.state for check in check_unpublished(tmp_path)] == [CheckState.RIGHT]
    for name in ("sbx-one", "sbx-two"):
        (tmp_path / "kept" / name).mkdir(parents=True)
    (check,) = check_unpublished(tmp_path)
    assert check.state is CheckState.WARNING
    assert check.found == f"2 ended sandboxes with unpublished events, in {tmp_path / 'kept'}"
    assert check.remedy is not None
    assert "retried" in check.remedy


@pytest.mark.parametrize(
    ("disks", "expected"),
    [
        ({"process": "none"}, [(CheckState.WARNING, "not limited in runtime process")]),
        ({"process": "none", "docker": "file system"}, [(CheckState.WARNING, "not limited in runtime process")]),
        ({"process": "file system", "docker": ""}, [(CheckState.RIGHT, "limited by file system in runtime process")]),
        ({"docker": ""}, []),
    ],
)
def test_runtime_without_a_disk_limit_is_reported(
    disks: dict[str, str], expected: list[tuple[CheckState, str]]
) -> None:
    """Another runtime with one does not hide it; an unknown limit is not judged."""
    checks = check_disk_limits([RuntimeView(runtime=name, disk=disk) for name, disk in disks.items()])
    assert [(check.state, check.found) for check in checks] == expected
    assert all(check.remedy for check in checks if check.state is CheckState.WARNING)


def test_gaps_of_isolation_are_shown_by_runtimes_and_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    """`sandherd runtimes` lists them below its table and `doctor` as checks with a remedy."""
    golden = json.loads((files("sandherd.contracts") / "golden/v1/replies/spawner.list_runtimes.json").read_text())
    found = Catalogue.model_validate(golden["ok"])
    lacking = [(one.runtime, gap) for one in found.runtimes for gap in one.gaps]
    assert lacking
    catalogue.print_catalogue(found)
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{runtime}: {gap}" in text for runtime, gap in lacking)
    checks = check_isolation(found.runtimes)
    assert [(check.name, check.found) for check in checks] == [(f"runtime {runtime}", gap) for runtime, gap in lacking]
    assert all(check.state is CheckState.WARNING and check.remedy for check in checks)
    assert check_isolation([one.model_copy(update={"gaps": []}) for one in found.runtimes]) == []
