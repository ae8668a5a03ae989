"""The emitter: events are complete, fit their limit, contain no secret, and end once."""

import asyncio
import hashlib
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandherd.contracts.chunks import CHUNK_BYTES
from sandherd.contracts.envelope import MAX_EVENT_BYTES
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.events.tools import AgentFileEdited, AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd_worker.emitter import Emitter, now
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import RecordKind

SECRET = "hunter2-hunter2"
DIGEST = "abcdef" * 10 + "0123"


def message(text: str) -> AgentMessage:
    return AgentMessage(content=text, content_length=len(text))


async def test_event_has_worker_source_and_consecutive_sequence(
    spool: Spool, emitter: Emitter, published_of: Any
) -> None:
    """Source, subject, task and sandbox are the worker's; sequences start at 1 without a gap, also in parallel."""
    await asyncio.gather(*(emitter.emit(message(str(number))) for number in range(50)))
    events = published_of(spool)
    assert [event.sequence for event in events] == list(range(1, 51))
    assert [event.data.content for event in events] == [str(number) for number in range(50)]
    first = events[0]
    assert (first.source, first.subject, first.taskid, first.sandboxid, first.project) == (
        "/sandherd/sandbox/sbx-1",
        "sbx-1",
        "task-1",
        "sbx-1",
        "p1",
    )
    assert len({event.id for event in events}) == 50


async def test_closed_values_and_digests_are_not_redacted(
    spool: Spool, tmp_path: Any, assignment: Any, published_of: Any
) -> None:
    """A secret that occurs in one of them by chance would make the event invalid; in a text it is redacted."""
    emitter = Emitter(spool, assignment(tmp_path), Redactor(["failed", "abcdef"]))
    await emitter.emit(AgentToolResult(tool_use_id="t1", result="it failed", outcome="failed", is_error=True))
    await emitter.emit(AgentFileEdited(file_path="abcdef", change_type="created", content_sha256=DIGEST))
    result, edited = (event.data for event in published_of(spool))
    assert (result.outcome, result.result) == ("failed", "it [redacted]")
    assert (edited.content_sha256, edited.file_path) == (DIGEST, "[redacted]")


async def test_trace_is_continued(spool: Spool, tmp_path: Any, assignment: Any, published_of: Any) -> None:
    """The runtime's trace is in every envelope."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await Emitter(spool, assignment(tmp_path, TRACEPARENT=trace), Redactor()).emit(message("x"))
    assert published_of(spool)[0].traceparent == trace


@pytest.mark.parametrize(("text", "times"), [("x", 1), ("x" * 300_000, 1), ("\x01" * 50_000, 2)])
async def test_event_is_serialised_once(
    spool: Spool, tmp_path: Any, assignment: Any, published_of: Any, text: str, times: int
) -> None:
    """An event is serialised once. Only one that is too large as JSON is serialised again, after it was shortened."""
    taken: list[datetime] = []

    def clock() -> datetime:
        taken.append(now())
        return taken[-1]

    await Emitter(spool, assignment(tmp_path), Redactor(), clock).emit(message(text))
    assert len(taken) == times
    assert published_of(spool)[0].time == taken[-1]


async def test_only_the_first_end_is_published(spool: Spool, emitter: Emitter, published_of: Any) -> None:
    """Of two ends only the first is published, even if they are concurrent; other events still are."""
    failed = AgentFailed(error="x", error_type="stopped")
    results = await asyncio.gather(emitter.emit(AgentCompleted()), emitter.emit(failed), emitter.emit(message("y")))
    assert list(results) == [True, False, True]
    assert [event.type for event in published_of(spool)] == ["agent.completed", "agent.message"]


async def test_secret_does_not_reach_the_disk(spool: Spool, emitter: Emitter, tmp_path: Any) -> None:
    """Events, keys, artifacts and the file's bytes are redacted."""
    await emitter.emit(AgentToolUse(tool="sh", tool_use_id="1", input={SECRET: [f"echo {SECRET}"], "a": {"b": SECRET}}))
    await emitter.emit(message(f"{SECRET} " * 20_000))
    on_disk = b"".join(path.read_bytes() for path in (tmp_path / "spool").glob("*"))
    assert b"[redacted]" in on_disk
    assert SECRET.encode() not in on_disk


async def test_long_text_is_truncated_and_stored_as_artifact(
    spool: Spool, emitter: Emitter, published_of: Any, records: Any
) -> None:
    """The event names the artifact; its chunks precede it, are small, and restore the text."""
    text = "".join(chr(33 + number % 90) for number in range(400_000))
    await emitter.emit(AgentToolCompleted(tool="sh", tool_response={"stdout": text, "code": 0}))
    *chunks, last = records(spool)
    assert last.kind is RecordKind.EVENT
    assert all(chunk.kind is RecordKind.ARTIFACT and len(chunk.payload) <= CHUNK_BYTES for chunk in chunks)
    event = published_of(spool)[0]
    reference = event.data.artifacts["tool_response.stdout"]
    whole = b"".join(chunk.payload for chunk in chunks)
    assert whole.decode() == text
    assert (reference.size, reference.chunks, reference.sha256) == (
        len(whole),
        len(chunks),
        hashlib.sha256(whole).hexdigest(),
    )
    assert {chunk.subject for chunk in chunks} == {reference.subject}
    assert event.data.tool_response["code"] == 0
    assert event.data.tool_response["stdout"].startswith(text[:1000])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.dictionaries(st.text(), JSON, max_size=5), times=st.sampled_from([1, 3000, 60_000]))
def test_event_of_any_size_fits_the_limit(value: dict[str, Any], times: int, emitter: Emitter) -> None:
    """Any JSON becomes a record that a service can read, within the limit, or an error in its place."""
    heavy = {key: item * times if isinstance(item, str) else item for key, item in value.items()}
    encoded = emitter.encode(AgentToolUse(tool="x", tool_use_id="1", input=heavy), 1)
    assert len(encoded.record.payload) <= MAX_EVENT_BYTES
    assert encoded.data.type in {"agent.tool_use", "agent.error"}


@pytest.mark.parametrize("depth", [10, 99, 150, 190, 230, 260, 500, 2000])
async def test_deeply_nested_event_is_replaced_by_an_error(
    spool: Spool, emitter: Emitter, published_of: Any, depth: int
) -> None:
    """Every record can be read by a service, and `emit` returns whether the event was published."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]} if depth % 2 else {"a": value}
    done = await emitter.emit(AgentToolUse(tool="x", tool_use_id="1", input={"a": value}))
    (event,) = published_of(spool)
    assert done is (event.type == "agent.tool_use")
    assert done is (depth == 10)


@pytest.mark.parametrize("text", ["\ud800", "\x00\x01\x1b[31m", "\u2028" * 90_000, "\x01" * 60_000])
async def test_unusual_characters_do_no_harm(spool: Spool, emitter: Emitter, published_of: Any, text: str) -> None:
    """Half a surrogate pair, control characters, and text that is six times as long in JSON are published."""
    await emitter.emit(message(text))
    assert [event.type for event in published_of(spool)] == ["agent.message"]


async def test_secret_equal_to_a_contract_value_is_not_redacted_there(
    spool: Spool, tmp_path: Any, assignment: Any, published_of: Any
) -> None:
    """A secret `stopped` is redacted in the text but not in the enumerated reason."""
    emitter = Emitter(spool, assignment(tmp_path), Redactor(["stopped"]))
    await emitter.emit(AgentFailed(error="it was stopped", error_type="stopped"))
    data = published_of(spool)[0].data
    assert (data.error_type, data.error) == ("stopped", "it was [redacted]")
