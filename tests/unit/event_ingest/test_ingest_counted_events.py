"""Which events count as turns, tool calls and errors in statistics and transcripts."""

import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final

import pytest

from event_ingest.event_rows import COUNTED_TYPES, ERRORS
from event_ingest.transcript_entries import transcript_entry, transcript_types
from sandherd.contracts import schemas
from sandherd.contracts.events import EVENTS
from sandherd.contracts.requests.history import StoredEvent
from sandherd.contracts.requests.statistics import Statistics

INDEX: Final = re.compile(r"create index events_of_activity [^;]*?where type in \(([^)]*)\)")


def test_types_of_errors_in_stored_statistics() -> None:
    """The numbers of stored history change their meaning with this set, so it is stated here and in the documents."""
    assert set(ERRORS) == {"agent.error", "agent.stream_error", "agent.iteration_failed", "agent.failed"}
    described = schemas.field_docs(Statistics)["errors"]
    assert set(re.findall("`(.*?)`", described)) == set(ERRORS)


def test_index_has_the_counted_types() -> None:
    """A statement about further types would read whole partitions: the index has to be created again for them."""
    migrations = files("event_ingest").joinpath("migrations")
    scripts = sorted((path for path in migrations.iterdir() if path.is_file()), key=lambda path: path.name)
    texts = [path.read_text() for path in scripts]
    found = [types for text in texts for types in INDEX.findall(text)]
    assert len(found) >= 2
    counted = {name for types in COUNTED_TYPES.values() for name in types}
    assert [set(re.findall("'(.*?)'", types)) for types in found[-2:]] == [counted] * 2


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_in_transcripts(name: str) -> None:
    """With its text, and marked as an error."""
    assert name in transcript_types(thoughts=False, results=False)
    assert "error" in EVENTS[name].model_fields
    envelope = {"type": name, "time": datetime(2026, 11, 20, tzinfo=UTC), "data": {"error": "tests fail"}}
    entry = transcript_entry(StoredEvent(stream_sequence=1, envelope=envelope))
    assert (entry.text, entry.is_error) == ("tests fail", True)


def test_failed_result_is_an_error_of_a_transcript() -> None:
    """It is no event that counts as an error: its own field states it."""
    data = {"tool_use_id": "1", "result": "r", "is_error": True}
    envelope = {"type": "agent.tool_result", "time": datetime(2026, 11, 20, tzinfo=UTC), "data": data}
    assert transcript_entry(StoredEvent(stream_sequence=1, envelope=envelope)).is_error
    assert "agent.tool_result" not in ERRORS
