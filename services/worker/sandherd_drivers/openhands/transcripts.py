"""A conversation as one file of JSON lines: its state, then its events. It can be resumed from that file."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

_STATE_FILE: Final = "base_state.json"
_EVENTS_DIR: Final = "events"
_STATE_KIND: Final = "ConversationState"


def conversation_dir(root: Path, session_id: str) -> Path:
    """The directory in which the SDK stores a conversation."""
    return root / UUID(session_id).hex


def save(directory: Path, transcript: Path) -> None:
    """Write the transcript of the conversation in this directory. Raises `OSError`."""
    temporary = transcript.with_suffix(".part")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(_lines(directory))
    temporary.replace(transcript)


def _lines(directory: Path) -> Iterator[str]:
    state = json.loads((directory / _STATE_FILE).read_text())
    yield json.dumps({"kind": _STATE_KIND, **state}, ensure_ascii=False) + "\n"
    # Sorted by number, not by name: the number in a name has five digits or more.
    numbered = ((int(path.name.split("-")[1]), path) for path in (directory / _EVENTS_DIR).glob("event-*.json"))
    for _, path in sorted(numbered):
        yield json.dumps(json.loads(path.read_text()), ensure_ascii=False) + "\n"


def restore(transcript: Path, root: Path, session_id: str) -> None:
    """Convert a transcript into the SDK's directory for a conversation, under this session's id.

    Raises `OSError`, or `ValueError` if it is not a transcript.
    """
    # Not `splitlines`: a text in a line may contain a Unicode line separator.
    lines = transcript.read_text(encoding="utf-8").split("\n")
    state, *events = [json.loads(line) for line in lines if line.strip()] or [None]
    if not isinstance(state, dict) or state.pop("kind", None) != _STATE_KIND:
        raise ValueError(f"{transcript.name} is not a transcript of a conversation")
    directory = conversation_dir(root, session_id)
    (directory / _EVENTS_DIR).mkdir(parents=True)
    for number, event in enumerate(events):
        _write(directory / _EVENTS_DIR / f"event-{number:05d}-{event['id']}.json", event)
    last_event_id = events[-1]["id"] if events else None
    changes = {"id": session_id, "persistence_dir": str(directory), "leaf_event_id": last_event_id}
    _write(directory / _STATE_FILE, {**state, **changes})


def _write(path: Path, document: dict[str, Any]) -> None:
    # Readable only by the owner, as the SDK's own files.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file, ensure_ascii=False)
