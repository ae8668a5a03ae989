"""Events in replies of the history: every one that was stored can be read again."""

import json
from typing import Any

import pytest

from sandherd.client.events.decoder import UnknownEvent, from_history
from sandherd.contracts.decoder import read_event, read_stored
from sandherd.contracts.envelope import MAX_EVENT_BYTES
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import StoredEvent
from tests.unit.contracts.hostile import EVENT_DOCUMENTS, subject_of

MESSAGE: dict[str, Any] = next(document for document in EVENT_DOCUMENTS if document["type"] == "agent.message")


def stored(document: bytes | str) -> StoredEvent:
    return StoredEvent(stream_sequence=1, envelope=json.loads(document))


@pytest.mark.parametrize("document", EVENT_DOCUMENTS, ids=lambda document: document["type"])
def test_event_from_the_history_is_the_live_one(document: dict[str, Any]) -> None:
    """Both have the same attributes and data."""
    live = read_event(subject_of(document), json.dumps(document).encode())
    assert from_history(stored(json.dumps(document))) == live
    assert read_stored(document) == live


@pytest.mark.parametrize(
    "values", ["1E5," * 60_000 + "0", "1e999", "[" * 150 + "0" + "]" * 150], ids=["long", "huge", "deep"]
)
def test_stored_event_is_read_beyond_the_limits_of_publishers(values: str) -> None:
    """It may be longer when its numbers are written again, and an earlier version may have stored it."""
    document = json.dumps(MESSAGE).replace('"data": {', f'"data": {{"x": [{values}],', 1)
    assert len(document) < MAX_EVENT_BYTES
    event = from_history(stored(document))
    assert event.data.content == MESSAGE["data"]["content"]


def test_event_without_its_data_is_read() -> None:
    """The history omits data that do not fit in a reply. The monitor, which needs them, gets an error."""
    envelope = MESSAGE | {"data": {}, "dataomitted": "300000 bytes that do not fit in a reply"}
    event = from_history(StoredEvent(stream_sequence=1, envelope=envelope))
    assert (event.type, str(event.id), type(event.data)) == (MESSAGE["type"], MESSAGE["id"], UnknownEvent)
    with pytest.raises(ContractError) as caught:
        read_stored(envelope)
    assert caught.value.problem.field == "data.content"


def test_publisher_cannot_claim_that_its_data_was_omitted() -> None:
    """An event with data is read by its type, whatever attributes its publisher has added."""
    envelope = MESSAGE | {"dataomitted": "1 byte"}
    assert from_history(StoredEvent(stream_sequence=1, envelope=envelope)) == from_history(stored(json.dumps(MESSAGE)))


def test_unknown_type_is_read_by_clients_only() -> None:
    """A newer service may have published it. A service that needs its fields gets an error."""
    envelope = MESSAGE | {"type": "agent.invented", "dataschema": "urn:sandherd:v1:agent.invented"}
    assert from_history(StoredEvent(stream_sequence=1, envelope=envelope)).data.content == MESSAGE["data"]["content"]
    with pytest.raises(ContractError) as caught:
        read_stored(envelope)
    assert caught.value.problem.code is Code.UNKNOWN_TYPE
