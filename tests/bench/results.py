"""The results in `build/bench.json`: one entry for each group, with its own date, commit and machine.

`{"format": 2, "groups": {GROUP: {"measured_at", "commit", "machine", "seconds", "runs", "figures": {NAME: …}}}}`; a
figure is `{"unit", "better", "parts": {PART: {"median", "min", "max", "baseline", "ratio"}}, "samples": […]}`.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.bench.figures import Figure, Measured, Part, Sample, Spread, summarize

FORMAT: Final = 2


class ResultError(Exception):
    """A file has no results that can be read. The message names the file and says why."""


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """The results of one measurement of a group. `seconds` is how long it took."""

    group: str
    measured_at: datetime
    commit: str | None
    machine: Mapping[str, Any]
    seconds: float
    runs: int
    figures: Sequence[Measured]


def to_json(results: Mapping[str, GroupResult]) -> dict[str, Any]:
    """The document of these results."""
    return {"format": FORMAT, "groups": {name: _group(result) for name, result in results.items()}}


def from_json(document: Mapping[str, Any]) -> dict[str, GroupResult]:
    """Read the results in a document. Raises `KeyError`, `TypeError` or `ValueError` if it is not of format 2."""
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']}, not {FORMAT}")
    return {name: _result(name, entry) for name, entry in document["groups"].items()}


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `ResultError`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} can't be read: {error}") from None
    if not isinstance(document, dict):
        raise ResultError(f"{path} is not a JSON object")
    return document


def load(path: Path) -> dict[str, GroupResult]:
    """The results in a file; none if it does not exist or is of an older format. Raises `ResultError`."""
    if not path.exists():
        return {}
    document = read_document(path)
    if "format" not in document:
        return {}
    try:
        return from_json(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{path} has no valid results: {type(error).__name__}: {error}") from None


def store(path: Path, result: GroupResult) -> None:
    """Replace the entry of one group in a file atomically; other entries stay. Raises the errors of `load`."""
    written = json.dumps(to_json(load(path) | {result.group: result}), indent=1, ensure_ascii=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _group(result: GroupResult) -> dict[str, Any]:
    return {
        "measured_at": result.measured_at.isoformat(timespec="seconds"),
        "commit": result.commit,
        "machine": dict(result.machine),
        "seconds": round(result.seconds, 1),
        "runs": result.runs,
        "figures": {one.figure.name: _figure(one) for one in result.figures},
    }


def _figure(measured: Measured) -> dict[str, Any]:
    return {
        "unit": measured.figure.unit,
        "better": measured.figure.better,
        "parts": {name: _part(part) for name, part in measured.parts.items()},
        "samples": [{"ours": dict(one.ours), "baseline": dict(one.baseline)} for one in measured.samples],
    }


def _part(part: Part) -> dict[str, Any]:
    beside = {"baseline": part.baseline, "ratio": part.ratio}
    return _spread(part.ours) | {name: found and _spread(found) for name, found in beside.items()}


def _spread(found: Spread) -> dict[str, float]:
    numbers = {"median": found.median, "min": found.low, "max": found.high}
    return {name: float(f"{number:.6g}") for name, number in numbers.items()}


def _result(name: str, entry: Mapping[str, Any]) -> GroupResult:
    return GroupResult(
        group=name,
        measured_at=datetime.fromisoformat(entry["measured_at"]),
        commit=entry["commit"],
        machine=entry["machine"],
        seconds=entry["seconds"],
        runs=entry["runs"],
        figures=[_measured(figure, found) for figure, found in entry["figures"].items()],
    )


def _measured(name: str, found: Mapping[str, Any]) -> Measured:
    samples = [Sample(one["ours"], one["baseline"]) for one in found["samples"]]
    return summarize(Figure(name, found["unit"], found["better"]), samples)
