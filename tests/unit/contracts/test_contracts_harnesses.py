"""The harness of a task: one kind, with that kind's fields and no other."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from sandherd import contracts
from sandherd.contracts.commands import SubmitTask
from sandherd.contracts.harness_kinds import CAPABILITIES, OWN_KINDS
from sandherd.contracts.harnesses import (
    HARNESSES,
    AnyHarness,
    CommandHarness,
    PluginHarness,
    free_text_fields,
)
from sandherd.contracts.specs import TaskSpec
from sandherd.plugins import HARNESSES as HARNESS_GROUP
from sandherd.plugins import installed, load_harness

ANY = TypeAdapter[BaseModel](AnyHarness)


@pytest.mark.parametrize(
    "harness_document",
    [
        {},
        {"kind": "Wizard of two words"},
        {"kind": ["wizard"]},
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
def test_invalid_harness_is_refused(harness_document: Any) -> None:
    """An unknown kind, an invalid plugin name, another kind's field and an empty command are refused."""
    with pytest.raises(ValidationError):
        ANY.validate_python(harness_document)


@pytest.mark.parametrize(("text", "fits"), [("x" * 65_536, True), ("四" * 42_666, True), ("四" * 42_667, False)])
def test_task_as_argument_is_limited_in_bytes(text: str, fits: bool) -> None:
    """The limit of a task passed as an argument counts bytes, not characters; other ways have no such limit."""
    for task_as in ("argument", "env", "stdin", "file"):
        harness_document = {"text": text, "harness": {"kind": "command", "argv": ["true"], "task_as": task_as}}
        if fits or task_as != "argument":
            assert TaskSpec.model_validate(harness_document).text == text
        else:
            with pytest.raises(ValidationError, match=r"128001 bytes.*task_as"):
                TaskSpec.model_validate(harness_document)


@pytest.mark.parametrize(
    "harness_document", [{"kind": "claude"}, {"kind": "openhands"}, {"kind": "acp", "argv": ["agent"]}]
)
def test_default_approvals_allow_all(harness_document: dict[str, Any]) -> None:
    """Omitted approvals allow the agent everything in its sandbox, and a decision that times out is a denial."""
    harness: Any = ANY.validate_python(harness_document)
    assert (harness.approvals.tools, harness.approvals.otherwise) == ({}, "allow")
    assert harness.approvals.on_timeout == "deny"


def test_old_command_is_written_without_new_fields() -> None:
    """Fields that an older reader does not know are omitted while they have no value."""
    harness_document = {"kind": "command", "argv": ["true"]}
    assert json.loads(CommandHarness(argv=["true"]).model_dump_json(exclude_none=True)) == harness_document
    assert ANY.validate_python({"argv": ["true"]}) == CommandHarness(argv=["true"])


def test_harness_of_a_plugin_is_preserved() -> None:
    """Nested and null fields survive in a worker's file, in a record, and in a copy of the spec."""
    harness_document = {"kind": "wizard", "spell": None, "wand": {"of": ["elder", None]}, "fields": 3}
    spec = TaskSpec.model_validate({"text": "x", "harness": harness_document})
    assert json.loads(spec.to_json())["harness"] == harness_document
    assert json.loads(spec.model_dump_json(exclude_defaults=True))["harness"] == harness_document
    assert TaskSpec.model_validate_json(spec.to_json()) == spec
    assert isinstance(spec.harness, PluginHarness)
    assert free_text_fields(spec.harness) == {"spell": None, "wand": {"of": ["elder", None]}, "fields": 3}


def test_built_in_harnesses_are_registered_as_plugins() -> None:
    """Each of our kinds is an entry point of the group, with its model, its capabilities and its driver."""
    plugins = {name: plugin for name, plugin in installed(HARNESS_GROUP).items() if plugin.is_builtin}
    assert {name: load_harness(plugin) for name, plugin in plugins.items()} == OWN_KINDS
    assert {name: kind.options for name, kind in OWN_KINDS.items()} == HARNESSES
    assert {name: kind.capabilities for name, kind in OWN_KINDS.items()} == CAPABILITIES


@pytest.mark.parametrize("kind", HARNESSES)
def test_all_free_text_fields_are_known(kind: str) -> None:
    """A secret may be in every text and list that has no closed set of values."""
    model = HARNESSES[kind]
    lists = {name: ["t"] for name in ("argv", "allowed_tools", "disallowed_tools")}
    text = dict.fromkeys(("script", "model", "base_url", "system_prompt", "append_system_prompt"), "t") | lists
    given = {name: value for name, value in text.items() if name in model.model_fields}
    assert free_text_fields(model.model_validate({"kind": kind, **given})) == given


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"command": "tickets", "secret_env": ["TOKEN", "OTHER"]}, "not in env: OTHER"),
        ({"command": "tickets", "args": ["--token=t0ken"]}, "name its variable in secret_env"),
        ({"command": "tickets", "env": {"T": "a t0ken b"}}, "name its variable in secret_env"),
    ],
)
def test_mcp_server_has_secrets_by_name_only(server: dict[str, Any], why: str) -> None:
    """A name that the task's variables lack is refused, and so is a value in a public field."""
    harness_document = {"text": "x", "env": {"TOKEN": "t0ken"}, "secret_env": ["TOKEN"]}
    with pytest.raises(ValidationError, match=why) as refused:
        TaskSpec.model_validate({**harness_document, "harness": {"kind": "claude", "mcp_servers": {"tickets": server}}})
    assert "t0ken" not in str(refused.value.errors(include_input=False, include_context=False))
    good = {"command": "tickets", "secret_env": ["TOKEN"]}
    TaskSpec.model_validate({**harness_document, "harness": {"kind": "claude", "mcp_servers": {"tickets": good}}})


def test_approvals_without_time_limit_have_none_at_the_worker() -> None:
    """`timeout_seconds: null` differs from no value: it is in the command, in the record and in the worker's file."""
    spec = TaskSpec.model_validate({"text": "x", "harness": {"kind": "claude", "approvals": {"timeout_seconds": None}}})
    command = SubmitTask(task="task-1", spec=spec)
    for written, model in ((spec.to_json(), TaskSpec), (command.model_dump_json(exclude_none=True), SubmitTask)):
        found: Any = model.model_validate_json(written)
        assert getattr(found, "spec", found).harness.approvals.timeout_seconds is None


def test_null_values_survive_serialization() -> None:
    """Documents are written without nulls: a nullable field has null as its default, or is written anyway."""
    lost = set()
    for model in contract_models():
        for name, field in model.model_fields.items():
            optional = type(None) in get_args(field.annotation) and not field.is_required()
            if optional and field.get_default(call_default_factory=True) is not None:
                values: dict[str, Any] = {name: None}
                if name not in model.model_construct(**values).model_dump(exclude_none=True, include={name}):
                    lost.add((model.__name__, name))
    assert lost == set()


def contract_models() -> Iterator[type[BaseModel]]:
    """All models of the contracts."""
    for module in pkgutil.walk_packages(contracts.__path__, f"{contracts.__name__}."):
        for each in vars(importlib.import_module(module.name)).values():
            if isinstance(each, type) and issubclass(each, BaseModel) and each.__module__ == module.name:
                yield each
