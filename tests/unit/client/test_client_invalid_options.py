"""Invalid values on the command line: one plain sentence with the option and what is permitted."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sandherd.cli.exit_status import run_command
from sandherd.cli.invalid_options import describe_invalid_option, with_option_names
from sandherd.cli.parse.constraints import DefaultConstraint, constraints_of
from sandherd.cli.parse.durations import duration
from sandherd.client.errors import HerdError, InvalidFieldError, validated
from sandherd.contracts.constraints import DEFAULT_CONSTRAINTS
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import CreateToken, SetBudget, SetProject, SetSchedule
from sandherd.contracts.schedules import ScheduleSpec
from sandherd.contracts.specs import SandboxSpec
from sandherd.settings.loader import load

RUN = ["run", "x"]
COMMAND = ["--", "true"]


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["sandboxes", "create", "--ttl", "2000d"], "--ttl has to be 1s to 30d"),
        (["run", "", *COMMAND], "TEXT must not be empty"),
        ([*RUN, "--attempts", "21", *COMMAND], "--attempts has to be 1 to 20"),
        ([*RUN, "--attempt-timeout", "400d", *COMMAND], "--attempt-timeout has to be 1s to 7d"),
        ([*RUN, "--task-timeout", "400d", *COMMAND], "--task-timeout has to be 1s to 30d"),
        ([*RUN, "--deadline", "2020-01-01T12:00+00:00", *COMMAND], "--deadline 2020-01-01 12:00:00+00:00 is in the"),
        ([*RUN, "--linger", "1000000", *COMMAND], "--linger has to be 0 to 1d"),
        ([*RUN, "--until", "true", "--check-timeout", "9d", *COMMAND], "--check-timeout has to be 1s to 1d"),
        ([*RUN, "--until", "true", "--max-duration", "9d", *COMMAND], "--max-duration has to be 1s to 7d"),
        ([*RUN, "--until", "true", "--max-cost", "0", *COMMAND], "--max-cost has to be 0.000001 to "),
        ([*RUN, "--cores", "0.01", *COMMAND], "'--cores': it has to be at least 0.05"),
        (["tasks", "list", "-n", "x"], "'-n': it has to be a whole number"),
        (["exec", "--timeout", "2d", "sbx-a", "ls"], "--timeout has to be 1s to 1d"),
        (["exec", "--cwd", "", "sbx-a", "ls"], "--cwd must not be empty"),
        (["exec", "sbx-a"], "write it after the sandbox's name"),
        (["subscriptions", "create", "Bad Name"], "`sandherd subscriptions list`"),
        ([*RUN, "--project", "WEB", *COMMAND], "setting project: it has to be 1 to 63 lower-case letters"),
        ([*RUN, "--secret", "MY=my-key", "--env", "MY=3", *COMMAND], "variables are in both secrets and env: MY"),
        (["--nats-url", "foo://bar", "tasks", "list"], "setting nats_url: it has to be nats://"),
        (["run", "bad\udcff", *COMMAND], "TEXT has to be valid UTF-8"),
        (["trajectory", "sbx-a", "-o", "name"], "-o name is not supported here, as this output has no names"),
        (["events", "sbx-a", "-o", "name"], "use table, wide, json or jsonl"),
        (["sandboxes", "logs", "sbx-a", "-o", "name"], "use table, wide, json or jsonl"),
        (["services", "logs", "spawner", "-o", "name"], "use table, wide, json or jsonl"),
        (["diff", "task-a", "-o", "name"], "use table, wide, json or jsonl"),
        ([*RUN, "--linger", "soon", *COMMAND], "'--linger': it has to be a duration: use 90s, 10m or 2h"),
        ([*RUN, "--linger", "0.5", *COMMAND], "'--linger': it has to be a whole number of seconds"),
        ([*RUN, "--attempt-timeout", "0.5", *COMMAND], "--attempt-timeout '0.5' is not a whole number of seconds"),
        ([*RUN, "--attempt-timeout", "0", *COMMAND], "--attempt-timeout '0' is not a duration; use 90s, 10m, 2h or 7d"),
        ([*RUN, "--deadline", "999999999d", *COMMAND], "--deadline '999999999d' is not a time"),
        (["tasks", "wait", "task-a", "--timeout", "0"], "--timeout '0' is not a duration"),
        (["send", "sbx-a", "x", "--timeout", "0"], "'--timeout': it has to be at least 0.1s"),
        (["tasks", "cancel"], "no tasks are selected; name tasks, or select them with --label or --batch"),
        ([*RUN, "--name", "Foo_Bar", *COMMAND], "or omit --name for a generated name"),
        (["events", "task-a", "--type", "tsk"], "did you mean task?"),
        (
            ["events", "task-a", "--type", "foo.bar"],
            "'foo.bar'; use a type of docs/events.md, or one of: agent, approval,",
        ),
        ([*RUN, "--secret", "my-key", *COMMAND], "'my-key' is not a variable name; write `--secret VARIABLE=my-key`"),
        ([*RUN, "--secret", "1A=my-key", *COMMAND], "'1A' is not a variable name; use 1 to 128 letters"),
        (["search", "-foo"], "No such option: -f; write text that begins with - after --: `sandherd search -- TEXT`"),
        (["projects", "set", "web"], "there is nothing to change; give a limit or default"),
        (["--home", "", "status"], "'--home': it must not be empty"),
        (["--credentials", "", "status"], "'--credentials': it must not be empty"),
        (["status", "--home", "x"], "--home goes before the command: `sandherd --home VALUE status`"),
        (["tasks", "list", "--context", "x"], "`sandherd --context VALUE tasks list`"),
        (["tasklist"], "Did you mean 'tasks'? See `sandherd --help`"),
        (["tasks", "show", "task-a"], "Did you mean 'get'? See `sandherd tasks --help`"),
        (["branches", "ls"], "Did you mean 'list'?"),
        (["ps"], "No such command 'ps'; see `sandherd --help`"),
        (["tasks", "fly"], "No such command 'fly'; see `sandherd tasks --help`"),
        (["--config", "/nope.yaml", "status"], "name another file with `sandherd --config` or SANDHERD_CONFIG"),
        (["budgets", "set"], "there is no limit to set; give --day or --month"),
        (["budgets", "set", "web"], "there is no limit to set; give --day or --month"),
        (["tokens", "revoke", "Bad Name"], "`sandherd tokens list`"),
        (["projects", "show", "Bad Name"], "`sandherd projects list`"),
        (["approvals", "grant", "sbx-a", ""], "approval_id: it has to be 1 to 128 characters without control"),
        (["secrets", "set", "a", "p4ss"], "a secret's value is not an argument, which other users could read"),
    ],
)
def test_invalid_value_is_one_sentence_about_the_option(
    words: list[str],
    expected_text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names the option, and the permitted range as one would type it, without the words of a validator."""
    monkeypatch.setenv("SANDHERD_HOME", str(tmp_path))
    assert run_command(words) == 2
    shown = capsys.readouterr().err
    assert expected_text in shown
    assert shown.count("\n") == 1
    for raw in ("Input should", "String should", "Value error", "copy it from"):
        assert raw not in shown


@pytest.mark.parametrize(
    ("model", "fields", "expected_text"),
    [
        (CreateToken, {"lifetime_seconds": 864_000_000}, "--expires has to be 1s to 366d"),
        (SetSchedule, {"schedule": {"catch_up_seconds": 2_592_000}}, "--catch-up has to be 1m to 7d"),
        (SetProject, {"unset": ["memory"]}, "--unset has to be 'tasks', 'sandboxes', "),
        (SetProject, {"limits": {"tasks": -1}}, "--tasks has to be 0 to 1000000"),
        (SetProject, {"defaults": {"memory_mb": 1}}, "--memory has to be 64m to 64g"),
        (SetBudget, {"limits": {"day": "foo"}}, "--day: an item is not a limit: write cost=…"),
        (SetBudget, {"limits": {"month": "cost=x"}}, "--month: the amount of cost is invalid"),
    ],
)
def test_invalid_field_of_a_request_has_the_name_of_its_option(
    model: type[BaseModel], fields: dict[str, Any], expected_text: str
) -> None:
    """The error never shows a field's name: also for an item of a list, and for a text that a rule refuses."""
    golden = files("sandherd.contracts") / f"golden/v1/requests/{model.type}.json"  # type: ignore[attr-defined]  # of requests
    whole = json.loads(golden.read_text())
    merged = {name: whole[name] | value if name == "schedule" else value for name, value in fields.items()}
    with pytest.raises(InvalidFieldError) as raised:
        validated(model, **{**whole, **merged})
    assert (describe_invalid_option(raised.value) or "").startswith(expected_text)


@pytest.mark.parametrize(
    ("field", "remedy", "shown"),
    [
        ("schedule.time_zone", "change time_zone", "change --time-zone"),
        ("schedule.cron", "change cron", "change --cron"),
        ("spec.attempt_seconds", "change spec.attempt_seconds, and submit it again",
         "change --attempt-timeout, and submit it again"),
        ("types", "change types", "change types"),
    ],
)  # fmt: skip
def test_remedy_of_a_refusal_names_the_option(field: str, remedy: str, shown: str) -> None:
    """A service can't know that its request is a command line's."""
    error = HerdError.of(Code.INVALID_FIELD, "refused", field=field, remedy=remedy)
    assert with_option_names(error).problem.remedy == shown


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["sandboxes", "create", "--ttl", "2000d"], "sandboxes create"),
        (["--home", "x", "sandboxes", "create", "--ttl", "2000d"], "sandboxes create"),
        ([*RUN, "--attempts", "21", *COMMAND], "run"),
    ],
)
def test_help_page_that_is_named_has_the_option(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of the command, not of its group."""
    monkeypatch.setenv("SANDHERD_HOME", str(tmp_path))
    assert run_command(words) == 2
    assert f"; see `sandherd {command} --help`" in capsys.readouterr().err


def test_unsafe_name_of_an_existing_task_is_to_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    """The remedy is to copy the name, not to choose a new one, also if the command may be called without a name."""
    assert run_command(["tasks", "cancel", "Bad Name"]) == 2
    shown = capsys.readouterr().err
    assert "task 'Bad Name' is not safe" in shown
    assert "copy it from `sandherd tasks list`" in shown


@pytest.mark.parametrize(
    ("fields", "expected_text"),
    [
        ({"limits": {"memory_mb": 1}}, "limits.memory_mb: it has to be 64 to 65536"),
        ({"limits": {"cores": 0}}, "limits.cores: it has to be 0.05 to 256"),
        ({"memory": "4g"}, "memory: it is not a known field"),
        ({"ttl_seconds": "soon"}, "ttl_seconds: it has to be a whole number"),
        ({"secrets": {f"A{n}": "a" for n in range(65)}}, "secrets: it has to have at most 64 items"),
    ],
)
def test_invalid_field_of_a_program_names_the_permitted_range(fields: dict[str, object], expected_text: str) -> None:
    """The range is named also for a field of a nested model, and for an optional field."""
    with pytest.raises(InvalidFieldError) as raised:
        validated(SandboxSpec, **fields)
    assert raised.value.line.startswith(expected_text)


@pytest.mark.parametrize(
    ("fields", "expected_text"),
    [
        ({"limits": 5}, "limits: it has to be a mapping of names to values"),
        ({"agent_server": "yes"}, "agent_server: it has to be"),
        ({"image": "-x"}, "image: it has to be an image's name, such as python:3.12"),
        ({"runtime": "WEB"}, "runtime: it has to be 1 to 63 lower-case letters"),
        ({"env": {"1A": "x"}}, "env.1A.[key]: it has to be 1 to 128 letters, digits or underscores"),
        ({"env": {"A": "x"}, "secrets": {"A": "a"}}, "variables are in both secrets and env: A"),
        ({"secret_env": "A"}, "secret_env: it has to be"),
    ],
)
def test_other_invalid_fields_have_plain_texts(fields: dict[str, object], expected_text: str) -> None:
    """Wrong types, patterns by their rule, and rules between fields, without words of the validator."""
    with pytest.raises(InvalidFieldError) as raised:
        validated(SandboxSpec, **fields)
    assert raised.value.line.startswith(expected_text)
    assert "Input should" not in raised.value.line


def test_setting_of_the_wrong_type_has_a_plain_text() -> None:
    """A settings file's values are refused in the same words."""
    with pytest.raises(ContractError, match="setting max_sandboxes: it has to be a whole number"):
        load({"max_sandboxes": "abc"}, {})


def test_cron_expression_is_refused_with_its_rule() -> None:
    """The error states the rule in words, not as a regular expression."""
    with pytest.raises(InvalidFieldError, match="cron: it has to be five fields"):
        validated(ScheduleSpec, cron="foo", task={"text": "x", "harness": {"kind": "command", "argv": ["true"]}})


@pytest.mark.parametrize(
    "words",
    [
        ["send", "sbx-a", "x", "--timeout", "5s"],
        ["approvals", "grant", "sbx-a", "apr-a", "--timeout", "1m"],
        ["approvals", "deny", "sbx-a", "apr-a", "--timeout", "0.5"],
        ["sandboxes", "create", "--timeout", "2m"],
        ["run", "x", "--linger", "2m", "--", "true"],
        ["run", "x", "--linger", "90", "--", "true"],
        ["run", "x", "--attempt-timeout", "1.5h", "--deadline", "0.5h", "--", "true"],
        ["tasks", "wait", "task-a", "--timeout", "0.5"],
    ],
    ids=" ".join,
)
def test_durations_have_a_unit_or_are_seconds(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are accepted: the command fails only because there is no broker."""
    monkeypatch.setenv("SANDHERD_HOME", str(tmp_path))
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")
    monkeypatch.setattr("sandherd.cli.herd_session.PATIENCE", 0)
    assert run_command(words) == 1
    assert "no broker" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("90", 90), ("1.5m", 90), ("2h", 7200), (30.0, 30)])
def test_duration_in_seconds(text: str | float, seconds: float) -> None:
    """A plain number is seconds."""
    assert duration(text) == seconds


def test_permitted_constraints_are_those_of_the_contract() -> None:
    """The command line lists them without loading the contracts."""
    assert tuple(DefaultConstraint) == DEFAULT_CONSTRAINTS
    assert constraints_of(["a"], None, [DefaultConstraint.FORCE_PUSH]) == {"paths": ["a"], "permitted": ["force_push"]}
    assert constraints_of(None, [], None) is None
