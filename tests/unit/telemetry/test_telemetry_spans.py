"""The table of spans, and the relations of spans before any is exported."""

import re

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from sandherd.telemetry import spans
from sandherd.telemetry.spans import SPANS
from sandherd.telemetry.traceparents import (
    derived,
    is_span_unused,
    new_traceparent,
    of_agent,
    of_sandbox,
    read,
    request_span,
)

APP = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def test_span_names_contain_no_ids() -> None:
    """A name consists of types, kinds of agents, and names of tools and models: ids are attributes."""
    free = {place for row in SPANS for place in re.findall(r"\{([a-z_.]+)\}", row.name)}
    assert free == {
        *("sandherd.type", "sandherd.step"),
        *("gen_ai.agent.name", "gen_ai.request.model", "gen_ai.tool.name"),
    }


def test_agent_spans_follow_the_conventions() -> None:
    """Every `gen_ai` attribute is one of OpenTelemetry's, and operations are named as there."""
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {attribute.name for row in SPANS for attribute in row.attributes if attribute.name.startswith("gen_ai.")}
    assert used <= known
    operations = {operation.value for operation in gen_ai_attributes.GenAiOperationNameValues}
    assert {"invoke_agent", "chat", "execute_tool"} <= operations
    for row in (spans.AGENT, spans.CHAT, spans.TOOL):
        assert row.name.partition(" ")[0] in operations


def test_unknown_value_is_left_out_of_a_span_name() -> None:
    """`chat` without a model is `chat`, and a span has no undeclared attribute."""
    assert spans.CHAT.named({spans.MODEL: "claude-opus"}) == "chat claude-opus"
    assert spans.CHAT.named({spans.MODEL: None}) == "chat"
    assert spans.CHAT.attributes_of({spans.MODEL: None, spans.PROJECT: "p"}) == {"sandherd.project": "p"}
    with pytest.raises(KeyError):
        spans.CHAT.attributes_of({spans.TOOL_NAME: "Bash"})


def test_task_uses_the_unexported_span_of_its_trace() -> None:
    """A trace begun with a task is the task's own; in another's trace it is a child of the requesting span."""
    fresh = new_traceparent()
    assert read(fresh) is not None
    assert is_span_unused(fresh)
    assert request_span(fresh, "life") == (fresh, None)
    own, parent = request_span(APP, "life")
    assert parent == APP
    assert own.split("-")[1] == APP.split("-")[1]
    assert own != APP


def test_span_ids_are_derived_before_export() -> None:
    """Each derivation of a span yields the same id in the same trace; all ids differ and are valid."""
    task = new_traceparent()
    made = [of_sandbox(task, "sbx-1"), of_sandbox(task, "sbx-2"), of_agent(of_sandbox(task, "sbx-1"))]
    assert len({task, *made}) == 4
    assert {traceparent.split("-")[1] for traceparent in made} == {task.split("-")[1]}
    assert of_sandbox(task, "sbx-1") == made[0] == derived(task, "sbx-1")
    assert all(read(traceparent) for traceparent in made)
