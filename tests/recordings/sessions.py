"""Reads recordings and their labels."""

import gzip
import json
from pathlib import Path
from typing import Any, Final

SESSIONS: Final = Path(__file__).parent
LABELS: Final = SESSIONS / "labels.json"


def plain_text(name: str) -> bytes | None:
    """The lines of a recording; None if there is none of this name."""
    plain, packed = SESSIONS / f"{name}.jsonl", SESSIONS / f"{name}.jsonl.gz"
    if plain.exists():
        return plain.read_bytes()
    return gzip.decompress(packed.read_bytes()) if packed.exists() else None


def names() -> list[str]:
    """The names of all recordings."""
    return sorted(path.name.partition(".")[0] for path in SESSIONS.glob("*.jsonl*"))


def labels() -> dict[str, dict[str, Any]]:
    """The label of each session, by name."""
    found: dict[str, dict[str, Any]] = json.loads(LABELS.read_text())["sessions"]
    return found


def events(name: str) -> list[dict[str, Any]]:
    """The events of a recording, in order. Raises `FileNotFoundError`."""
    found = plain_text(name)
    if found is None:
        raise FileNotFoundError(f"there is no recording {name}")
    return [json.loads(line) for line in found.splitlines()]
