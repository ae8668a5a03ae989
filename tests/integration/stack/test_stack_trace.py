"""One trace from submission to history, read back from a real OTLP receiver."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from sandherd.client import Context, Herd
from sandherd.stack.control import down, up

Spans = dict[str, set[tuple[str, str]]]
"""By trace: the service and the name of each span."""


@asynccontextmanager
async def receiver(spans: Spans) -> AsyncIterator[str]:
    """An OTLP/HTTP receiver that notes each span. Gives its endpoint."""

    async def take(request: web.Request) -> web.Response:
        export = ExportTraceServiceRequest.FromString(await request.read())
        for resource in export.resource_spans:
            service = next(
                pair.value.string_value for pair in resource.resource.attributes if pair.key == "service.name"
            )
            for scope in resource.scope_spans:
                for span in scope.spans:
                    spans.setdefault(span.trace_id.hex(), set()).add((service, span.name))
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")

    application = web.Application()
    application.router.add_post("/v1/traces", take)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_one_trace_joins_submission_sandbox_worker_and_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of the spawner, of the agent's run and of event-ingest stand in the trace that the task's events carry."""
    spans: Spans = {}
    with tempfile.TemporaryDirectory(prefix="trace-") as directory:
        async with receiver(spans) as endpoint:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
            await up(Path(directory))
            try:
                async with Herd.connect(Context.resolve(home=Path(directory), environ={})) as herd:
                    task = await herd.submit("say hello", ["echo", "hello"])
                    await asyncio.wait_for(herd.wait(task), 60)
                    traces = {
                        str(event.envelope["traceparent"]).split("-")[1] async for event in herd.events(task=task)
                    }
                assert len(traces) == 1, "the events of one task stand in several traces"
                wanted = {
                    ("sandherd-spawner", "handle spawner.submit_task"),
                    ("sandherd-spawner", "handle agent.started"),
                    ("sandherd-spawner", "agent runs"),
                    ("sandherd-event-ingest", "store event"),
                }
                async with asyncio.timeout(30):
                    while not wanted <= spans.get(next(iter(traces)), set()):
                        await asyncio.sleep(0.05)
            finally:
                await down(Path(directory))
