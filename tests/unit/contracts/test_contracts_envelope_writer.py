"""The writer of envelopes writes the same documents as an envelope."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from sandherd.contracts.envelope import MAX_EVENT_BYTES, parse, wrap
from sandherd.contracts.envelope_writer import EnvelopeWriter
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.names import new_uuid
from tests.unit.contracts.hostile import EVENT_DOCUMENTS

ATTRIBUTES: dict[str, Any] = {"source": "/sandherd/sandbox/sbx-1", "project": "default", "subject": "sbx-1"}
OPTIONAL = ("taskid", "sandboxid", "traceparent")
MESSAGE = AgentMessage(content="a", content_length=1)
TIME = datetime(2026, 11, 29, 12, 0, 0, 120_000, UTC)


@pytest.mark.parametrize("document", EVENT_DOCUMENTS, ids=lambda document: document["type"])
def test_every_event_is_written_as_by_its_envelope(document: dict[str, Any]) -> None:
    """Both documents are equal byte by byte, for the first event of a type and for the next ones."""
    envelope = parse(json.dumps(document).encode(), EVENTS[document["type"]])
    attributes = {name: getattr(envelope, name) for name in (*ATTRIBUTES, *OPTIONAL)}
    writer = EnvelopeWriter(**attributes)
    own: dict[str, Any] = {"id": envelope.id, "time": envelope.time.astimezone(UTC), "sequence": envelope.sequence}
    expected = envelope.model_copy(update=own).to_json()
    assert writer.document(envelope.data, envelope.type, **own) == expected
    assert writer.document(envelope.data, envelope.type, **own) == expected


@pytest.mark.parametrize("time", [TIME, TIME.replace(microsecond=0), TIME.astimezone(timezone(timedelta(hours=2)))])
def test_times_are_written_as_by_the_envelope(time: datetime) -> None:
    """Times with and without microseconds, and in another time zone, are written in the same way."""
    own: dict[str, Any] = {"id": new_uuid(), "time": time, "sequence": 2**31 - 1}
    written = EnvelopeWriter(**ATTRIBUTES).document(MESSAGE, MESSAGE.type, **own)
    assert written == wrap(MESSAGE, MESSAGE.type, **ATTRIBUTES, **own).to_json()


@pytest.mark.parametrize(
    "wrong",
    [
        {"sequence": 0},
        {"sequence": 2**31},
        {"time": datetime(2026, 1, 1)},  # noqa: DTZ001  # that is what is wrong
        {"time": datetime(1999, 1, 1, tzinfo=UTC)},
        {"time": datetime(2200, 1, 1, tzinfo=UTC)},
    ],
)
def test_what_an_envelope_refuses_is_refused(wrong: dict[str, Any]) -> None:
    """A sequence or a time that is out of range is refused."""
    own: dict[str, Any] = {"id": new_uuid(), "time": TIME, "sequence": 1, **wrong}
    with pytest.raises(ContractError):
        EnvelopeWriter(**ATTRIBUTES).document(MESSAGE, MESSAGE.type, **own)


def test_too_large_event_is_refused() -> None:
    """The limit applies to the whole document."""
    large = MESSAGE.model_copy(update={"content": "x" * MAX_EVENT_BYTES})
    with pytest.raises(ContractError):
        EnvelopeWriter(**ATTRIBUTES).document(large, large.type, id=new_uuid(), time=TIME, sequence=1)
