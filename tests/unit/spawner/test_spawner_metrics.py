"""The spawner's gauges and spans of tasks and sandboxes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from sandherd.contracts.commands import CommandHarness, SandboxLimits, SubmitTask, TaskSpec
from sandherd.contracts.envelope import wrap
from sandherd.contracts.states import SandboxState, TaskState
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.otlp_exporter import _SpanIds
from sandherd.telemetry.traceparents import new_traceparent
from spawner.live_state import LiveState
from spawner.sandboxes import sandbox_transitions as of_sandbox
from spawner.sandboxes.gauges import SpawnerGauges
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.task_spans import count, record_sandbox_span
from spawner.tasks import task_transitions as of_task
from spawner.tasks.resolved_task import ResolvedTask
from spawner.tasks.task_record import TaskRecord

T0 = datetime(2026, 11, 21, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


class Seen:
    """A herd as the sweeper sees it, and a clock."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sandboxes: dict[str, SandboxRecord] = {}
        self.tasks: list[TaskRecord] = []
        self.clock = T0
        live = SimpleNamespace(
            now=lambda: self.clock,
            meters=Meters(self.registry),
            task_index=SimpleNamespace(views=lambda: iter(self.tasks)),
            sandbox_index=SimpleNamespace(
                views=lambda: (record.view() for record in self.sandboxes.values()),
                items=lambda: ((key, SimpleNamespace(view=record.view())) for key, record in self.sandboxes.items()),
            ),
        )
        self.measures = SpawnerGauges(cast("LiveState", live), ["process", "docker"], 8)

    def begun(self, name: str, when: float, **changes: Any) -> None:
        record = SandboxRecord(
            project="p1", sandbox=name, runtime="process", limits=SandboxLimits(), requested_at=at(when),
            state=SandboxState.RUNNING,
        )  # fmt: skip
        self.sandboxes[name] = record.model_copy(update=changes)

    def pass_at(self, seconds: float) -> None:
        self.clock = at(seconds)
        self.measures.update()

    def shown(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"sandherd_{name}", labels)


def test_sandbox_time_is_counted_once_and_completely() -> None:
    """Earlier time was counted by another replica; from then on each second counts, also of a short-lived one."""
    seen = Seen()
    seen.begun("sbx-1", -100)
    seen.begun("sbx-0", -500, state=SandboxState.TERMINATED, ended_at=at(-400))
    seen.measures.start()
    seen.pass_at(5)
    assert seen.shown("sandbox_seconds_total", runtime="process") == 5
    seen.begun("sbx-2", 6, state=SandboxState.TERMINATED, ended_at=at(9))
    seen.measures.start()
    seen.pass_at(10)
    assert seen.shown("sandbox_seconds_total", runtime="process") == 10 + 3
    seen.pass_at(10)
    assert seen.shown("sandbox_seconds_total", runtime="process") == 13


def test_replica_without_the_lease_exports_no_gauges() -> None:
    """The gauges of all states exist while the lease is held, and again once it is held again."""
    seen = Seen()
    seen.begun("sbx-1", 0)
    seen.measures.start()
    seen.pass_at(1)
    assert seen.shown("sandboxes", state="running", runtime="process") == 1
    assert seen.shown("sandboxes", state="running", runtime="docker") == 0
    assert seen.shown("tasks", state="pending") == 0
    assert seen.shown("sandboxes_limit") == 8
    seen.measures.remove()
    assert seen.shown("sandboxes", state="running", runtime="process") is None
    assert seen.shown("tasks", state="pending") is None
    seen.clock = at(19)
    seen.measures.start()
    seen.pass_at(20)
    assert seen.shown("sandboxes", state="running", runtime="process") == 1
    assert seen.shown("sandbox_seconds_total", runtime="process") == 1 + 1


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The exported spans, in memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(id_generator=_SpanIds(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before, trace._TRACER_PROVIDER = trace._TRACER_PROVIDER, provider
    yield exporter
    trace._TRACER_PROVIDER = before


def submitted(traceparent: str | None) -> TaskRecord:
    command = wrap(
        SubmitTask(task="task-1", spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"]))), SubmitTask.type,
        source="/sandherd/client/x", sequence=1, project="p1", subject="task-1", time=T0, traceparent=traceparent,
    )  # fmt: skip
    return of_task.submitted(command, T0, new_traceparent(), ResolvedTask(max_attempts=2))


def history_of(task: TaskRecord, meters: Meters) -> SandboxRecord:
    """Record a first attempt that is lost and a second one that times out. Returns the ended sandbox of the second."""
    first = of_task.assigned(task, "sbx-1", at(1))
    again = of_task.attempt_failed(first, "gone", "worker_lost", at(5))
    second = of_task.assigned(again, "sbx-2", at(10))
    failed = of_task.attempt_failed(second, "too long", "task_timed_out", at(20))
    assert (again.state, failed.state) == (TaskState.PENDING, TaskState.FAILED)
    count(meters, lambda: at(5), first, again)
    count(meters, lambda: at(20), second, failed)
    sandbox = of_sandbox.requested(second, "sbx-2", at(10))
    ended = sandbox.model_copy(update={"state": SandboxState.TERMINATED, "ended_at": at(21)})
    record_sandbox_span(sandbox, ended)
    record_sandbox_span(ended, ended.model_copy(update={"unsaid": True}))
    return ended


@pytest.mark.parametrize("within", [None, "00-" + "c" * 32 + "-" + "d" * 16 + "-01"])
def test_spans_are_nested(spans: InMemorySpanExporter, within: str | None) -> None:
    """Every attempt has a span of its agent, exported once. The root is the span of the task or of its requester."""
    sandbox = history_of(submitted(within), Meters(CollectorRegistry()))
    span_of = {(span.name, span.attributes["sandherd.sandbox"]): span for span in found(spans)}
    assert len(found(spans)) == len(span_of) == 4
    task, box = span_of["task", "sbx-2"], span_of["sandbox", "sbx-2"]
    lost, late = span_of["invoke_agent command", "sbx-1"], span_of["invoke_agent command", "sbx-2"]
    assert (task.parent and f"{task.parent.span_id:016x}") == (within.split("-")[2] if within else None)
    assert box.parent.span_id == task.context.span_id
    assert late.parent.span_id == box.context.span_id
    assert f"{box.context.span_id:016x}" == str(sandbox.traceparent).split("-")[2]
    assert len({span.context.trace_id for span in span_of.values()}) == 1
    assert [span.attributes["error.type"] for span in (lost, late, task)] == [
        *("worker_lost", "task_timed_out", "task_timed_out")
    ]
    assert [span.attributes["sandherd.attempt"] for span in (lost, late)] == [1, 2]
    assert (lost.end_time - lost.start_time, task.end_time - task.start_time) == (4 * 10**9, 20 * 10**9)


def found(spans: InMemorySpanExporter) -> list[Any]:
    return list(spans.get_finished_spans())
