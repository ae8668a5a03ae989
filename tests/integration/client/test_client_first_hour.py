"""What a new user reads in the first hour: refusals come at once with the option, and numbers have units."""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandherd.client import Context, Herd, HerdError
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.stored_history import all_stored
from tests.terminals import Start

Sandherd = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def context(line: Context) -> Context:
    return line


@pytest.fixture
def sandherd(started: Start) -> Sandherd:
    """Run the command as a separate process: the services of the test log to this process's output."""

    async def run(*words: str) -> tuple[int, str, str]:
        process = await started(*words)
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    return run


@pytest.fixture
def operator(herd: Broker) -> list[str]:
    return ["--credentials", str(herd.credentials(Principal.OPERATOR))]


async def test_refusals_and_lists_are_clear(sandherd: Sandherd, operator: list[str], real: Herd, line: Context) -> None:
    """Errors about dependencies, projects, subscriptions and ended tasks name the option; a list uses words."""
    for follow in ("--follow", "--no-follow"):
        await check_unknown_dependency_is_refused_before_submission(sandherd, follow)
    await check_known_dependency_is_accepted(sandherd)
    await check_project_that_exists_is_not_reported_as_created(sandherd, operator)
    await check_project_without_capacity_states_that_none_may_start(sandherd, operator)
    await check_subscription_that_was_never_read_has_no_time_of_reading(sandherd)
    await check_ended_task_shows_the_attempts_that_it_took(sandherd)
    await check_rejected_task_is_not_only_unknown(sandherd, real)
    await check_hold_is_of_what_exists(sandherd, operator, line)


async def test_units_and_names_need_no_glossary(sandherd: Sandherd, real: Herd) -> None:
    """Times and sizes have units, and checks and fields have plain names; JSON has the names of the contracts."""
    await check_defaults_of_times_have_units(sandherd)
    await check_lifetimes_and_sizes_have_units(sandherd)
    await check_audit_has_no_field_that_needs_a_glossary(sandherd, real)
    await check_doctor_names_its_checks_in_plain_words(sandherd)


async def check_unknown_dependency_is_refused_before_submission(sandherd: Sandherd, follow: str) -> None:
    """Check that the error names the option and the task, and that nothing is submitted."""
    status, out, err = await sandherd("run", "text", follow, "--depends-on", "nosuch", "--", "true")
    assert (status, out) == (2, "")
    assert "--depends-on nosuch: there is no task nosuch in project default" in err
    _, tasks, _ = await sandherd("tasks", "list", "-o", "json")
    assert json.loads(tasks)["tasks"] == []


async def check_known_dependency_is_accepted(sandherd: Sandherd) -> None:
    """Check that a dependency on a task that has just been submitted is accepted, too."""
    await sandherd("run", "first", "--no-follow", "--name", "first", "--", "true")
    status, out, err = await sandherd("run", "second", "--depends-on", "first", "--", "true")
    assert status == 0
    assert "completed" in out
    assert all(" waits: " in line for line in err.splitlines())  # on a busy machine it states why the task waits


async def check_project_that_exists_is_not_reported_as_created(sandherd: Sandherd, operator: list[str]) -> None:
    """Check that creating it again succeeds and states that it exists; with other limits it is refused."""
    assert (await sandherd(*operator, "projects", "create", "web", "--tasks", "2"))[1] == "project web is created\n"
    again = await sandherd(*operator, "projects", "create", "web", "--tasks", "2")
    assert again[:2] == (0, "project web already exists, unchanged\n")
    status, _, err = await sandherd(*operator, "projects", "create", "web", "--tasks", "3")
    assert status == 1
    assert "change project web (`sandherd projects set web`)" in err


async def check_project_without_capacity_states_that_none_may_start(sandherd: Sandherd, operator: list[str]) -> None:
    """Check that a limit of zero is written in words, not as `0 of 0`."""
    await sandherd(*operator, "projects", "create", "closed", "--tasks", "0")
    _, out, _ = await sandherd(*operator, "projects", "list")
    (row,) = [line for line in out.splitlines() if line.startswith("closed")]
    assert "0, none may start" in row


async def check_subscription_that_was_never_read_has_no_time_of_reading(sandherd: Sandherd) -> None:
    """Check that the creation of a subscription is not shown as a reading."""
    await sandherd("subscriptions", "create", "alerts")
    _, out, _ = await sandherd("subscriptions", "list")
    header, row = out.splitlines()
    start = header.index("LAST READ")
    assert row[start : header.index("SINCE")].strip() == "-"


async def check_ended_task_shows_the_attempts_that_it_took(sandherd: Sandherd) -> None:
    """Check that it does not show `1/3`, which would promise two more attempts."""
    status, _, _ = await sandherd("run", "fail", "--name", "failing", "--attempts", "3", "--", "false")
    assert status == 1
    _, out, _ = await sandherd("tasks", "list")
    (row,) = [line for line in out.splitlines() if line.startswith("failing")]
    assert row.split()[:5] == ["failing", "failed", "-", "normal", "1"]


async def check_rejected_task_is_not_only_unknown(sandherd: Sandherd, real: Herd) -> None:
    """Check that `get` and `wait` have the history's reason; a name that was never submitted is only unknown."""
    status, out, _ = await sandherd("run", "x", "--image", "foo", "--no-follow", "--", "true")
    assert status == 0
    await all_stored(real)
    for command in ("get", "wait"):
        status, _, err = await sandherd("tasks", command, out.strip())
        assert status == 1
        assert f"{out.strip()} was rejected: runtime process does not support images" in err
        assert "omit --image" in err
        assert "there is no task nosuch" in (await sandherd("tasks", command, "nosuch"))[2]


async def check_hold_is_of_what_exists(sandherd: Sandherd, operator: list[str], line: Context) -> None:
    """Check that a hold of an unknown project or task is refused, and that any existing hold can be released."""
    reason = ("--reason", "case 7")
    for words, expected_text in (
        (["nope"], "there is no project nope"),
        (["default", "--task", "task-nope"], "there is no task task-nope"),
    ):
        status, _, err = await sandherd(*operator, "history", "hold", *words, *reason)
        assert status == 1
        assert expected_text in err
    status, _, err = await sandherd(*operator, "history", "release", "nope")
    assert status == 1
    assert "there is no hold of project nope" in err
    operators = replace(line, credentials=Path(operator[1]), project="nope")
    async with Herd.connect(operators, patience=PATIENCE) as unchecked:
        await unchecked.hold_history("case 7")
        with pytest.raises(HerdError, match="there is no task task-nope"):
            await unchecked.hold_history("case 7", task="task-nope")
    status, out, _ = await sandherd(*operator, "history", "release", "nope")
    assert (status, out) == (0, "project nope is not held any more\n")
    held = ("history", "hold", "default", "--task", "failing", *reason)
    assert (await sandherd(*operator, *held))[0] == 0


async def check_lifetimes_and_sizes_have_units(sandherd: Sandherd) -> None:
    """Check that they are shown as a user types them, also in the spawner's own refusals."""
    _, out, _ = await sandherd("runtimes")
    facts = dict(line.split("  ", 1) for line in out.splitlines() if line.startswith(("maximum", "default")))
    assert facts["maximum time to live"].strip() == "7d"
    assert facts["maximum file size"].strip().endswith("iB")
    assert "iB, 1h of CPU time" in facts["default limits"]
    _, box, _ = await sandherd("sandboxes", "create")
    status, _, err = await sandherd("sandboxes", "extend", box.strip(), "7d")
    assert status == 2
    assert "so at most 167h can be set now" in err
    for wanted in ("20d", "99999d"):  # the contract permits the first value
        status, _, err = await sandherd("sandboxes", "create", "--ttl", wanted)
        assert status == 2
        assert f"a lifetime of {wanted} was requested; at most 7d is allowed here" in err


async def check_audit_has_no_field_that_needs_a_glossary(sandherd: Sandherd, real: Herd) -> None:
    """Check that the table names the sandboxes without a last event; JSON has the contract's name."""
    await sandherd("run", "text", "--name", "one", "--", "true")
    await all_stored(real)
    status, out, _ = await sandherd("audit", "one")
    assert status == 0
    assert "without last event" in out
    assert "unsaid" not in out
    assert "unsaid" in json.loads((await sandherd("audit", "one", "-o", "json"))[1])


async def check_doctor_names_its_checks_in_plain_words(sandherd: Sandherd) -> None:
    """Check that the text has plain names; the name of a check in JSON does not change."""
    assert "unpublished events" in (await sandherd("doctor"))[1]
    checks = json.loads((await sandherd("doctor", "-o", "json"))[1])
    assert "unsaid" in {check["check"] for check in checks}


async def check_defaults_of_times_have_units(sandherd: Sandherd) -> None:
    """Check that they are shown as a user types them."""
    for words in (("send",), ("sandboxes", "create"), ("approvals", "grant"), ("provision",)):
        _, out, _ = await sandherd(*words, "--help")
        assert re.search(r"\[default:\s+(30s|2m|1m)\]", out), words
        assert not re.search(r"TIME[^\[]*\[default:\s+\d+(\.\d+)?\]", out), words
