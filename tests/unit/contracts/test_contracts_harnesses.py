"""What a task may say of its agent: one kind, with that kind's fields and no other."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from sandherd.contracts.harnesses import HARNESSES, AnyHarness, Approvals, CommandHarness, words
from sandherd.contracts.specs import TaskSpec

ANY = TypeAdapter[BaseModel](AnyHarness)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"kind": "wizard"},
        {"argv": ["true"], "model": "m"},
        "command",
        {"kind": "command"},
        {"kind": "command", "argv": []},
        {"kind": "command", "argv": ["true"], "model": "m"},
        {"kind": "command", "argv": ["true"], "task_as": "telepathy"},
        {"kind": "command", "script": ""},
        {"kind": "command", "script": "nul\0"},
        {"kind": "claude", "argv": ["claude"]},
        {"kind": "claude", "max_turns": 0},
        {"kind": "claude", "max_budget_micro_usd": -1},
        {"kind": "claude", "model": "two words"},
        {"kind": "claude", "permission_mode": "yolo"},
        {"kind": "openhands", "max_iterations": 0},
        {"kind": "acp"},
        {"kind": "acp", "argv": []},
        {"kind": "acp", "argv": ["x"], "approvals": {"tools": {"Bash": "perhaps"}}},
        {"kind": "acp", "argv": ["x"], "approvals": {"on_timeout": "ask"}},
        {"kind": "acp", "argv": ["x"], "approvals": {"timeout_seconds": 0}},
        {"kind": "acp", "argv": ["x"], "mcp_servers": {"sandherd": {"command": "mine"}}},
        {"kind": "acp", "argv": ["x"], "mcp_servers": {"a b": {"command": "mine"}}},
        {"kind": "claude", "mcp_servers": {"a": {"command": ""}}},
        {"kind": "claude", "mcp_servers": {"a": {"url": "https://example.com"}}},
        {"kind": "command", "argv": ["true"], "mcp_servers": {}},
    ],
)
def test_what_no_agent_can_be_is_refused(said: Any) -> None:
    """No kind, another kind's field, nothing to run, or a value that means nothing."""
    with pytest.raises(ValidationError):
        ANY.validate_python(said)


@pytest.mark.parametrize(("text", "fits"), [("x" * 65_536, True), ("四" * 42_666, True), ("四" * 42_667, False)])
def test_a_task_that_is_an_argument_weighs_what_the_kernel_takes(text: str, fits: bool) -> None:
    """In bytes, not characters; any other way to give it takes all of it."""
    for task_as in ("argument", "env", "stdin", "file"):
        said = {"text": text, "harness": {"kind": "command", "argv": ["true"], "task_as": task_as}}
        if fits or task_as != "argument":
            assert TaskSpec.model_validate(said).text == text
        else:
            with pytest.raises(ValidationError, match=r"128001 bytes.*task_as"):
                TaskSpec.model_validate(said)


@pytest.mark.parametrize("said", [{"kind": "claude"}, {"kind": "openhands"}, {"kind": "acp", "argv": ["agent"]}])
def test_an_agent_may_do_everything_unless_it_is_said(said: dict[str, Any]) -> None:
    """What is left out leaves the agent free in its sandbox, and an answer that doesn't come is a no."""
    harness: Any = ANY.validate_python(said)
    assert harness.approvals.allows_all
    assert harness.approvals.on_timeout == "deny"


def test_one_tool_that_is_not_free_is_found() -> None:
    """A policy is all-allow only if every tool is."""
    assert Approvals(tools={"Read": "allow"}).allows_all
    assert not Approvals(tools={"Bash": "ask"}).allows_all
    assert not Approvals(tools={"Read": "allow"}, otherwise="deny").allows_all


def test_an_old_command_is_written_as_it_always_was() -> None:
    """A reader that doesn't know the new fields is not shown them where they say nothing."""
    said = {"kind": "command", "argv": ["true"]}
    assert json.loads(CommandHarness(argv=["true"]).model_dump_json(exclude_none=True)) == said
    assert ANY.validate_python({"argv": ["true"]}) == CommandHarness(argv=["true"])


@pytest.mark.parametrize("kind", HARNESSES)
def test_all_free_text_is_known(kind: str) -> None:
    """What may hold a secret is every text and list that has no closed set of values."""
    model = HARNESSES[kind]
    lists = {name: ["t"] for name in ("argv", "allowed_tools", "disallowed_tools")}
    text = dict.fromkeys(("script", "model", "base_url", "system_prompt", "append_system_prompt"), "t") | lists
    given = {name: value for name, value in text.items() if name in model.model_fields}
    assert words(model.model_validate({"kind": kind, **given})) == given


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"command": "tickets", "secret_env": ["TOKEN", "OTHER"]}, "env lacks: OTHER"),
        ({"command": "tickets", "args": ["--token=t0ken"]}, "name its variable in secret_env"),
        ({"command": "tickets", "env": {"T": "a t0ken b"}}, "name its variable in secret_env"),
    ],
)
def test_a_server_has_secrets_by_their_names_only(server: dict[str, Any], why: str) -> None:
    """One that the task's variables lack is refused, and so is a value where anybody may read it."""
    said = {"text": "x", "env": {"TOKEN": "t0ken"}, "secret_env": ["TOKEN"]}
    with pytest.raises(ValidationError, match=why) as refused:
        TaskSpec.model_validate({**said, "harness": {"kind": "claude", "mcp_servers": {"tickets": server}}})
    assert "t0ken" not in str(refused.value.errors(include_input=False, include_context=False))
    good = {"command": "tickets", "secret_env": ["TOKEN"]}
    TaskSpec.model_validate({**said, "harness": {"kind": "claude", "mcp_servers": {"tickets": good}}})
