"""`read_canonical` returns the same event as `read_event`, or leaves the document to it."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sandherd.contracts
from event_ingest.canonical_events import MAX_BYTES, CanonicalEvent, read_canonical
from event_ingest.event_rows import EventBatch
from event_ingest.short_rows import short_row
from sandherd.bus.consumers.consumer import Delivery
from sandherd.contracts.decoder import read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.subjects import event_subject

GOLDEN: Final = Path(sandherd.contracts.__file__).parent / "golden/v1/events"
AGENTS: Final = sorted(name for name in EVENTS if name.startswith("agent."))
MESSAGE: Final = "agent.message"
PIECES: Final = (
    *('"data":{}', '"data":', ',"data":{"content":"x","content_length":1}', ',"id":"x"', ',"unknown":1', "}", "{"),
    *('"', "\\", ",", ":", " ", "\n", "\\u0000", "\\\\u0000", "NaN", "Infinity", "\\ud800", "null", "0", "9", "-", "Z"),
    *('"taskid":"task-2",', '"taskid":null,', '"sandboxid":"sbx-2",', '"project":"other",', '"traceparent":null,'),
    *(".000000", ".5", "24:00:00", "2199", "1999", "2200", "4294967296", "2147483648", "é", "\ufffd", "\u2028", "１"),
)
"""Pieces that are inserted into documents: they have a meaning in JSON or for Postgres, or nearly."""


def _golden(event_type: str) -> Envelope[EventData]:
    """The golden example of a type."""
    golden_document = json.loads((GOLDEN / f"{event_type}.json").read_text())
    subject = event_subject(golden_document["project"], golden_document["subject"], event_type)
    return read_event(subject, json.dumps(golden_document).encode())


def _subject(event: Envelope[EventData]) -> str:
    return event_subject(event.project, event.subject, event.type)


def _values(event: Envelope[EventData] | CanonicalEvent) -> list[Any]:
    """All values of an event that are stored or measured."""
    names = (*Envelope.model_fields, "data")
    return [getattr(event, name) for name in names if name in CanonicalEvent._fields]


def _check(subject: str, document: bytes) -> bool:
    """Whether `read_canonical` reads the document. Fails if `read_event` or `short_row` have another result."""
    found = read_canonical(subject, document)
    if found is None:
        return False
    assert _values(found) == _values(read_event(subject, document))
    batch = EventBatch()
    batch.add(0, Delivery(subject, document, "EVENTS", 7, 1, found.time))
    [whole], [short] = batch.rows, batch.short
    assert short == short_row(whole)
    return True


@pytest.mark.parametrize("event_type", AGENTS)
def test_every_event_of_an_agent_is_read_by_its_form(event_type: str) -> None:
    """An event is read as `to_json` writes it, with and without its optional members."""
    event = _golden(event_type)
    for update in ({}, {"traceparent": None}, {"taskid": None}, {"time": event.time.replace(microsecond=0)}):
        changed = event.model_copy(update=update)
        assert _check(_subject(changed), changed.to_json())


@pytest.mark.parametrize("event_type", sorted(set(EVENTS) - set(AGENTS)))
def test_events_of_services_are_left_to_the_decoder(event_type: str) -> None:
    """Events of services are not read here, because their tables are computed from the whole envelope."""
    event = _golden(event_type)
    assert read_canonical(_subject(event), event.to_json()) is None


@given(st.data())
def test_changed_document_is_read_equally_or_left(data: st.DataObject) -> None:
    """The test inserts pieces into a document at any place, or replaces a part of it."""
    event = _golden(data.draw(st.sampled_from([MESSAGE, "agent.tool_use", "agent.usage"])))
    text = event.to_json().decode()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(st.sampled_from(PIECES)) + text[end:]
    try:
        _check(_subject(event), text.encode())
    except ContractError as error:
        raise AssertionError(f"{text} is refused by read_event: {error}") from error


@given(st.sampled_from([*Envelope.model_fields]), st.sampled_from(PIECES), st.integers(0, 40))
def test_changed_member_is_read_equally_or_left(member: str, piece: str, place: int) -> None:
    """The test changes the value of a member of the envelope."""
    event = _golden(MESSAGE)
    text = event.to_json().decode()
    start = text.index(f'"{member}":') + len(member) + 3 + place
    for end in (start, start + len(piece)):
        _check_or_refuse(_subject(event), (text[:start] + piece + text[end:]).encode())


def _check_or_refuse(subject: str, document: bytes) -> None:
    try:
        _check(subject, document)
    except ContractError as error:
        raise AssertionError(f"{document!r} is refused by read_event: {error}") from error


@pytest.mark.parametrize("piece", PIECES)
def test_changed_end_is_read_equally_or_left(piece: str) -> None:
    """The test adds a member of the envelope after `data`, or text after the document."""
    event = _golden(MESSAGE)
    text = event.to_json().decode()
    for changed in (f"{text[:-1]}{piece}}}", f"{text[:-2]}{piece}}}}}", f"{text}{piece}"):
        _check_or_refuse(_subject(event), changed.encode())


def test_large_document_is_left_to_the_decoder() -> None:
    """A large document is not read here, so that a batch does not have both forms of it in memory."""
    event = _golden(MESSAGE)
    small, large = (
        event.model_copy(update={"data": event.data.model_copy(update={"content": "x" * size})}).to_json()
        for size in (MAX_BYTES // 2, MAX_BYTES)
    )
    assert _check(_subject(event), small)
    assert not _check(_subject(event), large)


@given(st.binary(min_size=1, max_size=3), st.integers(0, 2**16))
@example(b"\xff", 400)
@example(b"\xed\xa0\x80", 400)
def test_changed_bytes_are_read_equally_or_left(piece: bytes, place: int) -> None:
    """The test also inserts bytes that are not valid text."""
    event = _golden(MESSAGE)
    document = bytearray(event.to_json())
    start = place % len(document)
    document[start : start + len(piece)] = piece
    _check_or_refuse(_subject(event), bytes(document))


@pytest.mark.parametrize("depth", range(190, 205))
def test_nesting_is_limited_as_in_the_whole_document(depth: int) -> None:
    """The parser limits the depth of nesting. What is stored must be readable as a whole document."""
    event = _golden("agent.tool_use")
    nested = json.loads("[" * depth + "]" * depth)
    changed = event.model_copy(update={"data": event.data.model_copy(update={"input": {"deep": nested}})})
    _check_or_refuse(_subject(event), changed.model_dump_json(exclude_none=True).encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (r'"subject":"[^"]*"', '"subject":"sbx-2"'),
        (r'"source":"[^"]*"', '"source":"/sandherd/sandbox/sbx-2"'),
        (r'"project":"[^"]*"', '"project":"other"'),
        (r'"sandboxid":"[^"]*"', '"sandboxid":"sbx-2"'),
        (r'"type":"agent.message"', '"type":"agent.thinking"'),
        (r"urn:sandherd:v1:", "urn:sandherd:v2:"),
        (r'"sequence":\d+', '"sequence":0'),
        (r'"sequence":\d+', '"sequence":2147483648'),
        (r'"time":"\d{4}', '"time":"1999'),
        (r'"time":"\d{4}', '"time":"2200'),
        (r'"id":"(.{14})7', r'"id":"\g<1>4'),
        (r'"content":"', r'"content":"\\u0000'),
        (r'"data":{', '"data":{"x":NaN,'),
        (r'"data":{', '"data":{"x":[-Infinity],'),
        (r'"data":{', '"data":{"x":' + "[" * 127 + "0" + "]" * 127 + ","),
    ],
)
def test_event_that_may_not_be_published_is_left_to_be_refused(before: str, after: str) -> None:
    """The document differs from its subject, or has a value that is out of range."""
    event = _golden(MESSAGE)
    text, count = re.subn(before, after, event.to_json().decode(), count=1)
    assert count == 1
    assert read_canonical(_subject(event), text.encode()) is None
    with pytest.raises(ContractError):
        read_event(_subject(event), text.encode())


@pytest.mark.parametrize("place", [3, 4, 6], ids=["project", "sandbox", "type"])
def test_document_on_the_subject_of_another_is_left_to_be_refused(place: int) -> None:
    """A sandbox can't publish as another one: a document on the subject of another sandbox is not read here."""
    event = _golden(MESSAGE)
    tokens = _subject(event).split(".")
    tokens[place] = "thinking" if place == 6 else "sbx-other"
    assert read_canonical(_subject(event), event.to_json()) is not None
    assert read_canonical(".".join(tokens), event.to_json()) is None
    with pytest.raises(ContractError):
        read_event(".".join(tokens), event.to_json())


@pytest.mark.parametrize(
    "time",
    [
        *("2026-11-20T12:00:02.000000Z", "2026-11-20T12:00:02.5Z", "2026-11-20T12:00:02.750000+00:00"),
        *("2026-11-20T13:00:02.750000+01:00", "2026-11-20 12:00:02.750000Z", "2026-11-20T12:00:02.750000z"),
        *("2026-11-20T12:00Z", "2026-11-20T12:00:02,750000Z"),
    ],
)
def test_time_in_another_form_is_left(time: str) -> None:
    """A short row has no text of the time, which is restored in one form only. So other forms are not read here."""
    event = _golden(MESSAGE)
    text = re.sub(r'"time":"[^"]*"', f'"time":"{time}"', event.to_json().decode())
    assert read_canonical(_subject(event), text.encode()) is None
