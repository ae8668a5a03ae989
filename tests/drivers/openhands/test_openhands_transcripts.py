"""Transcripts of OpenHands: one file for the SDK's directory of a conversation, without the SDK."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from sandherd_drivers.openhands.transcripts import conversation_dir, restore, save

SESSION = str(uuid4())


def keep(root: Path, numbers: range) -> Path:
    """Store a conversation as the SDK does."""
    directory = root / UUID(SESSION).hex
    (directory / "events").mkdir(parents=True)
    state = {"id": SESSION, "persistence_dir": str(directory), "leaf_event_id": "id-0", "execution_status": "finished"}
    (directory / "base_state.json").write_text(json.dumps(state))
    for number in numbers:
        event = {"id": f"id-{number}", "kind": "MessageEvent", "text": f"{number}\u2028\n…"}
        (directory / "events" / f"event-{number:05d}-id-{number}.json").write_text(json.dumps(event, indent=1))
    (directory / "events" / ".eventlog.lock").touch()
    return directory


def read(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    events = sorted((directory / "events").glob("event-*.json"), key=lambda path: int(path.name.split("-")[1]))
    state = json.loads((directory / "base_state.json").read_text())
    return state, [json.loads(path.read_text()) for path in events]


@pytest.mark.parametrize("numbers", [range(0), range(1), range(99_998, 100_002)], ids=["none", "one", "many"])
def test_saved_conversation_is_restored(tmp_path: Path, numbers: range) -> None:
    """A conversation is restored under another id with each event in order, and continues from the last one."""
    directory = keep(tmp_path / "first", numbers)
    save(directory, tmp_path / "kept.jsonl")
    other = str(uuid4())
    restore(tmp_path / "kept.jsonl", tmp_path / "second", other)
    state, found = read(conversation_dir(tmp_path / "second", other))
    assert found == read(directory)[1]
    assert state == {
        "id": other,
        "persistence_dir": str(conversation_dir(tmp_path / "second", other)),
        "leaf_event_id": found[-1]["id"] if found else None,
        "execution_status": "finished",
    }


def test_transcript_is_replaced_atomically(tmp_path: Path) -> None:
    """A reader finds the old transcript or the new one; each of its lines is a document."""
    directory = keep(tmp_path, range(3))
    transcript = tmp_path / "kept.jsonl"
    for _ in range(2):
        save(directory, transcript)
        kinds = [json.loads(line)["kind"] for line in transcript.read_text().split("\n") if line]
        assert kinds == ["ConversationState", *["MessageEvent"] * 3]
    assert [path.name for path in tmp_path.glob("kept*")] == ["kept.jsonl"]


@pytest.mark.parametrize("text", ["", "\n", "[]\n", '{"kind": "MessageEvent"}\n', "no JSON\n"])
def test_invalid_transcript_is_refused(tmp_path: Path, text: str) -> None:
    """An invalid transcript is refused before any file is written."""
    (tmp_path / "kept.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"kept\.jsonl|Expecting"):
        restore(tmp_path / "kept.jsonl", tmp_path / "root", SESSION)
    assert not (tmp_path / "root").exists()


def test_session_has_an_id_of_the_sdk(tmp_path: Path) -> None:
    """An invalid id is refused."""
    with pytest.raises(ValueError, match="badly formed"):
        conversation_dir(tmp_path, "../../escape")
