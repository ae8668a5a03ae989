"""Export of spans and metrics: complete, and never blocked by a hanging or unreachable collector."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import pytest
from opentelemetry import trace
from prometheus_client import CollectorRegistry

from sandherd.contracts.errors import Code, ContractError
from sandherd.telemetry import spans, traces
from sandherd.telemetry.fields import ALWAYS
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.otlp_exporter import OtlpExporter
from sandherd.telemetry.traceparents import new_traceparent, of_agent
from tests.doubles.otlp.receiver import Collector, collecting
from tests.patience import PATIENCE

AGENT = "invoke_agent claude"
NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_provider() -> Iterator[None]:
    """OpenTelemetry keeps one provider for each process; here each test has its own."""
    before, trace._TRACER_PROVIDER = trace._TRACER_PROVIDER, None
    trace._TRACER_PROVIDER_SET_ONCE._done = False
    yield
    trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE._done = before, before is not None


class Exported:
    """A process that exports."""

    def __init__(self, endpoint: str) -> None:
        self.registry = CollectorRegistry()
        self.meters = Meters(self.registry)
        self._exporting = OtlpExporter("tested", endpoint, self.registry, self.meters)

    async def stop(self) -> None:
        await asyncio.to_thread(self._exporting.stop)

    def exported(self, signal: str, outcome: str) -> float | None:
        return self.registry.get_sample_value("sandherd_exports_total", {"signal": signal, "outcome": outcome})


def publish_event(own: str, parent: str | None = None) -> None:
    values: spans.Values = {spans.AGENT_NAME: "claude", spans.ERROR_TYPE: "signal"}
    traces.record(spans.AGENT, parent, NOW, NOW + timedelta(seconds=3), values, own=own)


async def test_span_is_exported_with_its_derived_id() -> None:
    """A span to which other spans refer has the derived id, its parent, its times and its failure."""
    async with collecting() as collector:
        exported = Exported(collector.endpoint)
        task = new_traceparent()
        agent = of_agent(task)
        publish_event(agent, task)
        traces.record(spans.TASK, None, NOW, NOW, {}, own=task)
        with traces.span(spans.HANDLE, agent, {spans.TYPE: "agent.started"}):
            inside = traces.current_traceparent()
        await exported.stop()
    found = {span.name: span for span in collector.spans}
    agent_span, root, handled = found["invoke_agent claude"], found["task"], found["handle agent.started"]
    assert f"00-{agent_span.trace}-{agent_span.span}-01" == agent
    assert f"00-{root.trace}-{root.span}-01" == task
    assert (agent_span.parent, root.parent, handled.parent) == (root.span, "", agent_span.span)
    assert (agent_span.ended - agent_span.begun, agent_span.failed, root.failed) == (3_000_000_000, True, False)
    assert inside is not None
    assert inside.split("-")[1] == root.trace
    assert exported.exported("traces", "sent") == 3


async def test_span_contains_no_error_text() -> None:
    """A failed span does not contain the text of its error, which may contain a secret."""
    async with collecting() as collector:
        exported = Exported(collector.endpoint)
        with suppress(ValueError), traces.span(spans.ANSWER, None, {spans.TYPE: "spawner.exec"}):
            raise ValueError("sk-ant-0123456789 is no name")
        await exported.stop()
    (span,) = collector.spans
    assert (span.name, span.failed) == ("answer spawner.exec", True)
    assert "sk-ant" not in span.whole
    assert __name__ not in span.whole, "nor where it broke"


async def test_failed_span_has_the_type_of_its_error() -> None:
    """The type is the code of a refusal, or the class of the exception; a span without a failure has no type."""
    async with collecting() as collector:
        exported = Exported(collector.endpoint)
        for number, error in enumerate((ContractError(Code.NOT_FOUND, "there is no task"), KeyError("task-1"), None)):
            with suppress(ContractError, KeyError), traces.span(spans.HANDLE, None, {spans.TYPE: f"of.{number}"}):
                if error:
                    raise error
        await exported.stop()
    found = {span.name: span for span in collector.spans}
    types = [found[f"handle of.{number}"].attributes.get("error.type") for number in range(3)]
    assert types == ["not_found", "KeyError", None]
    assert [found[f"handle of.{number}"].failed for number in range(3)] == [True, True, False]


async def test_spans_and_metrics_have_the_version_of_the_service() -> None:
    """`service.version` is the installed version, of both signals."""
    async with collecting() as collector:
        exported = Exported(collector.endpoint)
        publish_event(new_traceparent())
        await exported.stop()
    assert collector.versions == {"traces": {version("sandherd")}, "metrics": {version("sandherd")}}


async def test_trace_is_sampled_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sampler by trace id, all spans of one trace are exported or none."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    async with collecting() as collector:
        exported = Exported(collector.endpoint)
        for task in (new_traceparent() for _ in range(200)):
            publish_event(of_agent(task), task)
            traces.record(spans.TASK, None, NOW, NOW, {}, own=task)
        await exported.stop()
    stored = {name: {span.trace for span in collector.spans if span.name == name} for name in ("task", AGENT)}
    assert stored["task"] == stored[AGENT]
    assert 0 < len(stored["task"]) < 200


async def test_finished_spans_are_those_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A span that is exported without a span of the SDK equals one that is exported with it."""
    task = new_traceparent()
    documents = []
    for sampler in ("parentbased_always_on", "always_on"):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        async with collecting() as collector:
            exported = Exported(collector.endpoint)
            assert (getattr(trace.get_tracer_provider(), "finished_spans", None) is None) == (sampler == "always_on")
            publish_event(of_agent(task), task)
            publish_event(of_agent(of_agent(task)), f"{task[:-2]}03")
            traces.record(spans.TASK, None, NOW, NOW - timedelta(seconds=1), {spans.PRIORITY: "x" * 300}, own=task)
            await exported.stop()
        documents.append(sorted(span.whole for span in collector.spans))
        trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE._done = None, False
    assert documents[0] == documents[1]
    assert len(documents[0]) == 3


async def test_span_in_a_trace_that_is_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a span is exported if its parent is; nothing is exported if the SDK is disabled."""
    for disabled in ("false", "true"):
        monkeypatch.setenv("OTEL_SDK_DISABLED", disabled)
        async with collecting() as collector:
            exported = Exported(collector.endpoint)
            publish_event(new_traceparent(), f"{new_traceparent()[:-2]}00")
            publish_event(new_traceparent(), "00-" + "0" * 32 + "-" + "0" * 16 + "-01")
            await exported.stop()
        assert [span.parent for span in collector.spans] == ([""] if disabled == "false" else [])
        trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE._done = None, False


async def test_exported_metrics_equal_those_of_prometheus() -> None:
    """Sums, gauges and histograms have the same names and figures; a histogram's buckets are not cumulative."""
    async with collecting() as collector:
        exported = Exported(collector.endpoint)
        exported.meters.count("sandherd_tokens_total", 5, kind="input")
        exported.meters.set("sandherd_connected", 1)
        for took in (0.002, 0.002, 0.3, 100):
            exported.meters.observe("sandherd_handler_seconds", took, consumer="event-ingest")
        await exported.stop()
    points = collector.points["sandherd-tested"]
    (tokens,) = points["sandherd_tokens_total"]
    assert (tokens.as_double, tokens.attributes[0].value.string_value) == (5, "input")
    assert points["sandherd_connected"][0].as_double == 1
    (handler,) = points["sandherd_handler_seconds"]
    assert (handler.count, sum(handler.bucket_counts), handler.bucket_counts[-1]) == (4, 4, 1)
    assert len(handler.bucket_counts) == len(handler.explicit_bounds) + 1
    assert handler.sum == pytest.approx(100.304)
    assert not handler.HasField("min")
    assert collector.units["sandherd_handler_seconds"] == "s"
    assert collector.units["sandherd_connected"] == "{connection}"
    assert {name: unit for name, unit in collector.units.items() if not unit} == {}


async def test_hanging_collector_delays_no_stop() -> None:
    """The stop completes while the collector still holds its requests, however many."""
    async with collecting("hangs") as collector:
        exported = Exported(collector.endpoint)
        for _ in range(10_000):
            publish_event(new_traceparent())
        await exported.stop()
        assert still_held(collector)
        assert collector.spans == []
        waiting = 10_000 - (exported.exported("traces", "lost") or 0)
        assert 2048 <= waiting <= 2048 + 512, "what did not fit was not counted as lost"


def still_held(collector: Collector) -> bool:
    return collector.held > 0 and not collector.release.is_set()


@pytest.mark.parametrize("unreachable", [True, False])
async def test_unreachable_collector_is_counted_and_logged_once(
    unreachable: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused spans count as lost, and the log has one line about them."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    async with collecting("refuses") as collector:
        exported = Exported("http://127.0.0.1:9" if unreachable else collector.endpoint)
        publish_event(new_traceparent())
        await exported.stop()
    assert (exported.exported("traces", "sent"), exported.exported("traces", "lost")) == (0, 1)
    assert exported.exported("metrics", "lost")
    assert len([line for line in capfd.readouterr().err.splitlines() if "collector" in line]) == 1


async def test_collector_for_traces_only_is_logged_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of traces refuses metrics: that is logged the first time, not at every export."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    async with collecting("traces") as collector:
        exported = Exported(collector.endpoint)
        async with asyncio.timeout(PATIENCE):
            while (exported.exported("metrics", "lost") or 0) < 50 or len(collector.spans) < 5:
                publish_event(new_traceparent())
                await asyncio.sleep(0.02)
        await exported.stop()
    assert exported.exported("traces", "lost") == 0
    assert len([line for line in capfd.readouterr().err.splitlines() if "collector" in line]) == 1


def test_log_line_of_any_thread_names_its_service() -> None:
    """Exports run in threads, which begin without the context of their starter."""
    code = (
        "import threading; from sandherd.telemetry import logs; logs.configure('monitor');"
        "say = logs.get('tested').info; say('here');"
        "thread = threading.Thread(target=say, args=('there',)); thread.start(); thread.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["here", "there"]
    assert all({field.name for field in ALWAYS} <= line.keys() for line in lines), lines
    assert {line["service"] for line in lines} == {"monitor"}
