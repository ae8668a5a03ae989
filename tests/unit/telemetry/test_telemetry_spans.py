"""The table of spans, and how spans stand to each other before any is told."""

import re

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from sandherd.telemetry import spans
from sandherd.telemetry.spans import SPANS
from sandherd.telemetry.traceparents import begun_with, derived, is_untold, new_traceparent, of_agent, of_sandbox, read

APP = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def test_names_hold_no_ids() -> None:
    """A name is made of words, types, kinds of agents, and names of tools and models: a span's ids are attributes."""
    free = {place for row in SPANS for place in re.findall(r"\{([a-z_.]+)\}", row.name)}
    assert free == {
        *("sandherd.type", "sandherd.step"),
        *("gen_ai.agent.name", "gen_ai.request.model", "gen_ai.tool.name"),
    }


def test_agents_are_told_by_the_conventions() -> None:
    """Every `gen_ai` attribute that we use is one of OpenTelemetry's, and operations are named as there."""
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {attribute.name for row in SPANS for attribute in row.attributes if attribute.name.startswith("gen_ai.")}
    assert used <= known
    operations = {operation.value for operation in gen_ai_attributes.GenAiOperationNameValues}
    assert {"invoke_agent", "chat", "execute_tool"} <= operations
    for row in (spans.AGENT, spans.CHAT, spans.TOOL):
        assert row.name.partition(" ")[0] in operations


def test_what_is_not_known_is_left_out_of_a_name() -> None:
    """`chat` without a model is `chat`, and a span takes no attribute that is not declared for it."""
    assert spans.CHAT.named({spans.MODEL: "claude-opus"}) == "chat claude-opus"
    assert spans.CHAT.named({spans.MODEL: None}) == "chat"
    assert spans.CHAT.attributes_of({spans.MODEL: None, spans.PROJECT: "p"}) == {"sandherd.project": "p"}
    with pytest.raises(KeyError):
        spans.CHAT.attributes_of({spans.TOOL_NAME: "Bash"})


def test_a_task_takes_the_span_that_nobody_tells() -> None:
    """A trace that was begun with a task is the task's own; in another's trace it is a part of what asked for it."""
    fresh = new_traceparent()
    assert read(fresh) is not None
    assert is_untold(fresh)
    assert begun_with(fresh, "life") == (fresh, None)
    own, parent = begun_with(APP, "life")
    assert parent == APP
    assert own.split("-")[1] == APP.split("-")[1]
    assert own != APP


def test_spans_are_known_before_they_are_told() -> None:
    """Whoever derives a span gets the same, in the same trace; no two are alike, and all are valid."""
    task = new_traceparent()
    made = [of_sandbox(task, "sbx-1"), of_sandbox(task, "sbx-2"), of_agent(of_sandbox(task, "sbx-1"))]
    assert len({task, *made}) == 4
    assert {traceparent.split("-")[1] for traceparent in made} == {task.split("-")[1]}
    assert of_sandbox(task, "sbx-1") == made[0] == derived(task, "sbx-1")
    assert all(read(traceparent) for traceparent in made)
