"""One trace from submission to the last event, including the agent's own spans, read from an OTLP receiver."""

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from sandherd.stack.control import down, status, up
from sandherd.telemetry.fields import ALWAYS, NAMES
from sandherd.telemetry.metrics import BORROWED, BY_NAME, GROUPS
from tests.doubles.otlp.receiver import Collector, ReceivedSpan, collecting
from tests.drivers.toolchains import interpreter
from tests.e2e.line import Line
from tests.models.anthropic import anthropic_model
from tests.models.anthropic_answers import calls, writes
from tests.models.ports import DECLARED, endpoints
from tests.patience import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.agents, pytest.mark.timeout(900)]


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """A collector for services and sandboxes."""
    async with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("SANDHERD_SANDBOX_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv(DECLARED, endpoints())
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        yield collector


@pytest.fixture
async def line(collector: Collector, sandherd_program: Path) -> AsyncIterator[Line]:
    """A stack that exports to it."""
    with tempfile.TemporaryDirectory(prefix="traced-") as directory:
        home = Path(directory)
        (home / "toolchains").mkdir()
        (home / "toolchains" / "claude").symlink_to(interpreter("claude").parent.parent)
        await up(home)
        line = Line(home, sandherd_program)
        try:
            yield line
        finally:
            await line.leave()
            await down(home)


def named(spans: list[ReceivedSpan], name: str) -> ReceivedSpan:
    found = [span for span in spans if span.name == name]
    assert len(found) == 1, f"{name}: {sorted(span.name for span in spans)}"
    return found[0]


async def received_spans(collector: Collector, trace: str, *names: str) -> list[ReceivedSpan]:
    """Wait for these spans and the spans that contain them, which may come later; returns the spans of the trace."""
    with suppress(TimeoutError):  # the reader reports what is missing
        async with asyncio.timeout(PATIENCE):
            while not is_whole(collector.trace(trace), names):
                await asyncio.sleep(0.05)
    return collector.trace(trace)


def is_whole(spans: list[ReceivedSpan], names: tuple[str, ...]) -> bool:
    """Whether these spans, and every span that contains one of them, have come."""
    known = {span.span for span in spans} | {""}
    return set(names) <= {span.name for span in spans} and all(span.parent in known for span in spans)


async def test_trace_joins_submission_sandbox_worker_agent_and_history(line: Line, collector: Collector) -> None:
    """The task's span contains its sandbox's, that its agent's, and that its calls and those of its own program."""
    async with anthropic_model() as model:
        model.script(calls("Bash", command="echo from inside"), writes("Done."))
        given = [f"ANTHROPIC_BASE_URL={model.url}", "CLAUDE_CODE_MAX_RETRIES=0"]
        words = [word for item in given for word in ("--env", item)]
        secret = "sk-ant-scripted-0123456789"
        done = await line("run", "Greet", "--harness", "claude", *words, "--secret-env", f"ANTHROPIC_API_KEY={secret}")
    task = done.checked_output().split()[0]
    view = (await line("tasks", "get", task, "-o", "json")).document()
    events = [*await events_of(line, task), *await events_of(line, view["sandbox"])]
    traces = {str(event["traceparent"]).split("-")[1] for event in events}
    assert len(traces) == 1
    spans = await received_spans(
        collector,
        traces.pop(),
        *("task", "sandbox", "invoke_agent claude", "execute_tool Bash", "handle agent.started"),
        "handle agent.completed",
        *("store task.submitted", "store task.completed", "store sandbox.terminated"),
        *("claude_code.llm_request", "claude_code.tool"),
    )
    root, sandbox, agent = (named(spans, name) for name in ("task", "sandbox", "invoke_agent claude"))
    assert (root.parent, sandbox.parent, agent.parent) == ("", root.span, sandbox.span)
    known = {span.span for span in spans}
    assert [(span.service, span.name) for span in spans if span.parent not in known | {""}] == []
    assert [span.name for span in spans if not span.parent] == ["task"]
    within = {span.name for span in spans if span.parent == agent.span}
    assert {"execute_tool Bash", "handle agent.started", "handle agent.completed"} <= within
    assert any(span.name.startswith("chat") for span in spans if span.parent == agent.span)
    assert agent.attributes["gen_ai.usage.input_tokens"] > 0
    assert agent.attributes["gen_ai.conversation.id"]
    assert {"sandherd-spawner", "sandherd-event-ingest", "claude-code"} <= {span.service for span in spans}
    assert secret not in repr(collector.spans)
    assert task not in {word for span in collector.spans for word in span.name.split()}
    await metrics_came(collector)
    await only_what_is_declared_is_shown(line)
    only_what_is_declared_is_logged(line)


async def events_of(line: Line, entity: str) -> list[Any]:
    return [json.loads(row) for row in (await line("events", entity, "-o", "json")).checked_output().splitlines()]


async def only_what_is_declared_is_shown(line: Line) -> None:
    """Check that each service's /metrics has only labels of the table, and no hostile text."""
    found = {part.name: part.http for part in (await status(line.home)).parts if part.http}
    assert found.keys() == GROUPS.keys() - {"every service"}
    async with ClientSession() as web:
        for service, http in found.items():
            async with web.get(f"{http}/metrics") as answer:
                families = list(text_string_to_metric_families(await answer.text()))
            own = {metric.name for group in ("every service", service) for metric in GROUPS[group]}
            samples = [sample for family in families for sample in family.samples]
            assert {re.sub(r"_(bucket|sum|count)$", "", sample.name) for sample in samples} <= own | set(BORROWED)
            for sample in (sample for sample in samples if sample.name.startswith("sandherd_")):
                metric = BY_NAME[re.sub(r"_(bucket|sum|count)$", "", sample.name)]
                labels = {name: value for name, value in sample.labels.items() if name != "le"}
                known = {label.name: label.values for label in metric.labels}
                assert [pair for pair in labels.items() if pair[1] not in known[pair[0]]] == []


def only_what_is_declared_is_logged(line: Line) -> None:
    """Check that each service and each other program with JSON logs writes one object per line, with common fields."""
    lines = []
    for service in GROUPS.keys() - {"every service"}:
        text = (line.home / "logs" / f"{service}.log").read_text()
        lines += text[: text.rfind("\n") + 1].splitlines()  # the last line may be incomplete
    documents = [json.loads(text) for text in lines]
    assert {name for document in documents for name in document} <= NAMES
    always = {field.name for field in ALWAYS}
    assert [document for document in documents if not always <= document.keys()] == []
    assert any("trace_id" in document for document in documents)


async def metrics_came(collector: Collector) -> None:
    """Check that there are metrics of every service, and the agent's own."""
    services = {f"sandherd-{name}" for name in ("spawner", "event-ingest", "monitor", "message-relay")}
    async with asyncio.timeout(PATIENCE):
        while not services | {"claude-code"} <= collector.points.keys():
            await asyncio.sleep(0.05)
        while not sum(point.as_double for point in collector.points["sandherd-event-ingest"]["sandherd_tokens_total"]):
            await asyncio.sleep(0.05)
    assert "claude_code.cost.usage" in collector.points["claude-code"]
