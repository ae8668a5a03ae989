"""What a task may say of its agent: one kind, with that kind's fields and no other."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from sandherd.contracts.harnesses import HARNESSES, AnyHarness, Approvals, CommandHarness, words

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
    ],
)
def test_what_no_agent_can_be_is_refused(said: Any) -> None:
    """No kind, another kind's field, nothing to run, or a value that means nothing."""
    with pytest.raises(ValidationError):
        ANY.validate_python(said)


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
