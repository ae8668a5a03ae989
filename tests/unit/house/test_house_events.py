"""Facts about events are attributes of their classes: no other module lists types of events."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.base import CommandRefusal, types_with_state
from sandherd.contracts.events.tools import AgentToolUse, AgentUserToolResult
from sandherd.contracts.schemas import json_schemas
from sandherd.contracts.states import SandboxState, TaskState
from sandherd.contracts.subjects import BY_NAME
from sandherd_drivers import model_calls
from sandherd_worker.harnesses.event_lines import may_emit
from tests.unit.house.texts import nodes_of

CLASSES: Final = "libs/sandherd/contracts/events/"
DRIVERS: Final = "services/worker/sandherd_drivers/"
"""They run beside an agent's SDK, without Sandherd's packages, and write events as JSON: what they write is checked by
the worker, and here."""
EXAMPLES: Final = {"libs/sandherd/contracts/event_types.py"}
"""An error message that shows what a type looks like."""
PAGES: Final = Path(__file__).parents[3] / "services" / "gateway" / "pages" / "src"
"""The sources of the browser pages. They have facts about events in a module that `make docs` generates, and name types
only where they show or handle an event in its own way."""
FACTS: Final = "api/event_facts.ts"
READERS: Final = "session/events.ts"
"""What each event adds to a timeline, by type."""
_DOMAIN: Final = "|".join(sorted({name.partition(".")[0] for name in EVENTS}))
_PAGE_TYPE: Final = re.compile(rf"""(?<!=)(?<!startsWith\()["'`]((?:{_DOMAIN})\.[a-z_]+)["'`]""")
"""A type in quotes that is no value of an attribute and no beginning of a type."""
_PAGE_PATTERN: Final = re.compile(rf"(?:{_DOMAIN})\\\.\S*\|")
"""A regular expression with several types: a name in it would not be found."""
_TYPE: Final = "|".join(map(re.escape, EVENTS))
_IN_QUOTES: Final = re.compile(rf"""["']({_TYPE})["']""")
_IN_SQL: Final = re.compile(f"'({_TYPE})'")


def _texts(source: Any) -> Iterator[str]:
    """The string literals of a file that are no docstrings."""
    nodes = list(nodes_of(source.tree))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def _types(source: Any) -> set[str]:
    """The types of events that a file names, also within SQL."""
    if not _IN_QUOTES.search(source.text):
        return set()
    return {name for text in _texts(source) for name in [text, *_IN_SQL.findall(text)] if name in EVENTS}


def test_no_module_names_types_of_events(product: list[Any]) -> None:
    """A module uses the class, or an attribute of all classes; so a new event is in no list that could lack it."""
    others = [source for source in product if not source.name.startswith((CLASSES, DRIVERS))]
    assert {source.name for source in others if _types(source)} == EXAMPLES


def test_pages_name_types_that_exist_and_list_no_facts() -> None:
    """The types that end the attempt or count as errors are generated."""
    sources = [path for path in PAGES.rglob("*") if path.suffix in {".ts", ".svelte"}]
    paths = [path for path in sources if not path.name.endswith((".test.ts", ".d.ts"))]
    texts = {path.relative_to(PAGES).as_posix(): path.read_text() for path in paths}
    named = {file: set(_PAGE_TYPE.findall(text)) for file, text in texts.items()}
    assert sum(map(len, named.values())) > 60
    assert {name for types in named.values() for name in types} - EVENTS.keys() == set()
    assert {file for file, text in texts.items() if _PAGE_PATTERN.search(text)} == set()
    facts = {name for name, model in EVENTS.items() if model.terminal or model.counts_as_error}
    assert {file for file, types in named.items() if types & facts} == {FACTS, READERS}


def test_drivers_name_only_events_that_they_may_emit(product: list[Any]) -> None:
    """What a driver writes is accepted by its worker."""
    named = {source.name: _types(source) for source in product if source.name.startswith(DRIVERS)}
    assert sum(map(len, named.values())) > 30
    assert {(file, name) for file, types in named.items() for name in types if not may_emit(name, "driver")} == set()


def test_drivers_follow_the_calls_that_the_classes_open_and_close() -> None:
    """The tables of model calls can't be derived there; they have what the classes say of calls of tools."""
    opens = {name for name, model in EVENTS.items() if model.opens == "tool_use_id"}
    closes = {name for name, model in EVENTS.items() if model.closes == "tool_use_id"}
    assert opens == model_calls._TOOL_STARTS
    assert closes - {AgentUserToolResult.type} == model_calls._TOOL_ENDS  # no driver emits that one


def test_event_is_emitted_by_the_publisher_of_its_subject() -> None:
    """A worker publishes what it, an agent or a driver emits; a service publishes its own."""
    for name, model in EVENTS.items():
        publisher = "worker" if model.emitted_by in {"agent", "driver"} else model.emitted_by
        assert BY_NAME[f"event.{name.partition('.')[0]}"].producers == {publisher}, name


def test_what_an_agent_may_emit_is_not_inherited() -> None:
    """A class that builds on an event of an agent says itself who may emit it."""
    with pytest.raises(TypeError, match="emitted_by"):
        type(
            "AgentToolAudit", (AgentToolUse,), {"__annotations__": {"type": ClassVar[str]}, "type": "agent.tool_audit"}
        )
    assert "agent.tool_audit" not in EVENTS


def test_states_of_two_kinds_are_different() -> None:
    """A task and a sandbox may both fail; one is not taken for the other."""
    assert types_with_state([TaskState.FAILED], EVENTS) == {"task.failed"}
    assert types_with_state([SandboxState.FAILED, SandboxState.RUNNING], EVENTS) == {
        *("sandbox.failed", "sandbox.running", "sandbox.resumed"),
    }


def test_an_end_of_a_task_or_sandbox_closes_its_source() -> None:
    """Who waits for the end of an entity then has all its events, unless it is retried."""
    ends = types_with_state([TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED], EVENTS)
    ends |= types_with_state([SandboxState.TERMINATED, SandboxState.FAILED], EVENTS)
    assert {name for name in ends if not EVENTS[name].closes_source} == set()


def test_a_refusal_of_a_command_closes_its_source() -> None:
    """A reader of refusals waits for nothing more; in a sandbox's own source one is an event among others."""
    refusals = {name: model for name, model in EVENTS.items() if issubclass(model, CommandRefusal)}
    assert {"task.refused", "sandbox.refused", "message.refused"} <= refusals.keys()
    assert {name for name, model in refusals.items() if model.closes_source == model.closes_source_alone} == set()


def test_a_type_is_reserved_as_long_as_its_service_does_not_publish_it(product: list[Any]) -> None:
    """And the documents say so: a subscriber to it would wait without effect."""
    services = {"spawner", "monitor", "message-relay"}
    refusals = "libs/sandherd/bus/consumers/refused_commands.py"
    sources = [one for one in product if one.name.startswith(tuple(f"services/{name}/" for name in services))]
    nodes = [
        node for one in [*sources, *(two for two in product if two.name == refusals)] for node in nodes_of(one.tree)
    ]
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    of_services = {name: model for name, model in EVENTS.items() if model.emitted_by in services}
    assert len(of_services) > 40
    reserved = {name for name, model in of_services.items() if model.reserved}
    assert {name for name, model in of_services.items() if model.__name__ not in named} == reserved
    for name, schema in json_schemas().items():
        assert str(schema.get("description", "")).startswith("Reserved") == (name in reserved)


def test_a_worker_publishes_every_type_of_an_agent(product: list[Any]) -> None:
    """Its own code or one of its drivers names it; the one that is left to the programs in sandboxes is stated here."""
    sources = [one for one in product if one.name.startswith("services/worker/")]
    nodes = [node for one in sources for node in nodes_of(one.tree)]
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    named |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    texts = {text for one in sources for text in _types(one)}
    of_workers = {name: model for name, model in EVENTS.items() if model.emitted_by in {"worker", "driver", "agent"}}
    assert len(of_workers) > 40
    assert [name for name, model in of_workers.items() if model.reserved] == []
    unnamed = {name for name, model in of_workers.items() if model.__name__ not in named and name not in texts}
    assert unnamed == {AgentUserToolResult.type}


def test_every_refusal_has_a_code(product: list[Any]) -> None:
    """No service publishes the refusal of a command or message with a text alone."""
    refusals = {cls.__name__ for cls in EVENTS.values() if {"code", "command_id"} <= cls.model_fields.keys()}
    assert len(refusals) >= 5
    calls = [call for source in product for call in nodes_of(source.tree) if isinstance(call, ast.Call)]
    found = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in refusals]
    assert len(found) >= 4
    assert [ast.unparse(call) for call in found if "code" not in {given.arg for given in call.keywords}] == []
