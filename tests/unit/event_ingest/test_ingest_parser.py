"""Any message on the stream is either read as an event or refused."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_ingest.event_rows import COLUMNS, EventBatch, columns
from sandherd.bus.consumers.consumer import Delivery
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.subjects import event_subject

AT = datetime(2026, 11, 20, tzinfo=UTC)
SUBJECT = event_subject("default", "sbx-1", "agent.message")
GOOD = wrap(
    AgentMessage(content="hello", content_length=5),
    "agent.message",
    source="/sandherd/sandbox/sbx-1",
    sequence=1,
    project="default",
    subject="sbx-1",
    time=AT,
    sandboxid="sbx-1",
)
MEMBERS = [*json.loads(GOOD.to_json()), "data.content", "data.turn", "data.unknown"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _delivery(document: bytes, subject: str = SUBJECT) -> Delivery:
    return Delivery(subject, document, "EVENTS", 1, 1, AT)


def _read(delivery: Delivery) -> EventBatch:
    batch = EventBatch()
    with suppress(ContractError):
        batch.add(0, delivery)
    assert len(batch.indexes) == len(batch.rows) == len(batch.service_events)
    return batch


def test_valid_event_is_a_row() -> None:
    """The values of the row are in the order of the columns, and include the unchanged document."""
    [row] = _read(_delivery(GOOD.to_json())).rows
    values = dict(zip([name for name, _ in COLUMNS], row, strict=True))
    assert (values["id"], values["entity"], values["sequence"], values["time"]) == (GOOD.id, "sbx-1", 1, AT)
    assert values["envelope"].encode() == GOOD.to_json()
    assert [len(column) for column in columns([row])] == [1] * len(COLUMNS)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_or_read(document: bytes) -> None:
    """Random bytes cause no other exception."""
    assert len(_read(_delivery(document))) == 0


@given(st.text(max_size=120))
def test_arbitrary_subject_is_refused_or_read(subject: str) -> None:
    """A valid document on another subject than its own causes no other exception."""
    assert len(_read(_delivery(GOOD.to_json(), subject))) == int(subject == SUBJECT)


@given(st.sampled_from(MEMBERS), JSON)
def test_arbitrary_value_of_a_member_is_refused_or_read(member: str, value: Any) -> None:
    """The test replaces one member of a valid event. The result is a row with the document, or a refusal."""
    event_document = json.loads(GOOD.to_json())
    inner = event_document["data"] if member.startswith("data.") else event_document
    inner[member.removeprefix("data.")] = value
    document = json.dumps(event_document).encode()
    for row in _read(_delivery(document)).rows:
        assert (row[-2].encode(), row[-1]) == (document, len(document))


@given(st.data())
def test_changed_byte_is_refused_or_read(data: st.DataObject) -> None:
    """The test changes one byte of a valid event."""
    document = bytearray(GOOD.to_json())
    document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
    _read(_delivery(bytes(document)))


@pytest.mark.parametrize("document", [b"[" * 100_000, b'{"data":' * 50_000, b'"' + b"x" * 300_000, b"9" * 200_000])
def test_too_deep_or_long_document_is_refused(document: bytes) -> None:
    """Nesting, strings and numbers without an end are refused, without recursion."""
    assert len(_read(_delivery(document))) == 0
