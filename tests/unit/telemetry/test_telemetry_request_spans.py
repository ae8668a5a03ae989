"""Spans of requests: a share of them, and all that are slow or fail in the service."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from opentelemetry import trace
from prometheus_client import CollectorRegistry

from sandherd.contracts.errors import Code, ContractError
from sandherd.service import request_spans
from sandherd.service.request_spans import SLOW_SECONDS, RequestSpans, is_notable
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.otlp_exporter import OtlpExporter
from sandherd.telemetry.traces import current_traceparent
from tests.doubles.otlp.receiver import ReceivedSpan, collecting

GOOD = "spawner.tasks"


@pytest.fixture(autouse=True)
def no_provider() -> Iterator[None]:
    """OpenTelemetry keeps one provider for each process; here each test has its own."""
    before, trace._TRACER_PROVIDER = trace._TRACER_PROVIDER, None
    trace._TRACER_PROVIDER_SET_ONCE._done = False
    yield
    trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE._done = before, before is not None


async def exported(requests: RequestSpans, *errors: Exception | None) -> list[ReceivedSpan]:
    """The spans of requests that end so."""
    async with collecting() as collector:
        registry = CollectorRegistry()
        exporter = OtlpExporter("tested", collector.endpoint, registry, Meters(registry))
        for error in errors:
            with suppress(ContractError, KeyError), requests.span(GOOD):
                if error:
                    raise error
        await asyncio.to_thread(exporter.stop)
    return collector.spans


async def test_one_request_in_a_hundred_has_a_span() -> None:
    """Ten of a thousand requests that succeed or are refused have a span; each is a trace of its own."""
    draws = iter([draw / 1000 for draw in range(1000)])
    found = await exported(
        RequestSpans(0.01, lambda: next(draws)), *[None, ContractError(Code.NOT_FOUND, "none")] * 500
    )
    assert Counter(span.attributes.get("error.type") for span in found) == {None: 5, "not_found": 5}
    assert len({span.trace for span in found}) == len(found)


async def test_every_failure_of_the_service_has_a_span() -> None:
    """Failures of the service have a span even if the share is 0; refusals that the requester caused have none."""
    faults = [KeyError("x"), ContractError(Code.UNAVAILABLE, "down"), ContractError(Code.INTERNAL, "broken")]
    refusals = [ContractError(code, "no") for code in Code if code not in {Code.UNAVAILABLE, Code.INTERNAL}]
    found = await exported(RequestSpans(0), *faults, *refusals, None)
    assert [span.attributes["error.type"] for span in found] == ["KeyError", "unavailable", "internal"]
    assert {(span.failed, span.name, span.kind, span.parent) for span in found} == {(True, f"answer {GOOD}", 2, "")}


async def test_every_slow_request_has_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that takes longer than the limit has a span of the same duration, even if it succeeds."""
    assert [is_notable(None, seconds) for seconds in (SLOW_SECONDS / 2, SLOW_SECONDS * 2)] == [False, True]
    monkeypatch.setattr(request_spans, "SLOW_SECONDS", -1.0)
    (span,) = await exported(RequestSpans(0), None)
    assert (span.failed, span.begun <= span.ended) == (False, True)


def test_without_a_collector_there_are_no_spans() -> None:
    """No random number is drawn, and no time is measured."""
    with RequestSpans(1, lambda: pytest.fail("drawn")).span(GOOD):
        assert current_traceparent() is None
