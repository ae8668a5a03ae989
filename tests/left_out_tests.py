"""The tests that `make test` leaves out and `make soak` runs, and the tests that were merged: `tests/left_out/*.toml`.

Each has its claim and the tests that show it in `make test`. A test is left out if its claim is shown by a cheaper
test: for another runtime, agent or service that shares the mechanism, for one of several moments or signals, or below a
whole stack. Other tests are marked `long` where they are defined, with the reason there.
"""

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest

_FOLDER: Final = Path(__file__).parent / "left_out"


@dataclass(frozen=True)
class LeftOut:
    """Tests of one file, by name; `*` stands for any parameters."""

    file: str
    """Below `tests/`."""
    names: tuple[str, ...]
    claim: str
    shown_by: tuple[str, ...]
    """Tests that `make test` runs, as `file::function` below `tests/`."""

    def includes(self, nodeid: str) -> bool:
        """Whether this test is one of them."""
        file, _, name = nodeid.partition("::")
        # brackets in parameters are literal characters
        return file == f"tests/{self.file}" and any(fnmatchcase(_plain(name), _plain(it)) for it in self.names)


@dataclass(frozen=True)
class Merged:
    """A test that no longer exists, and the test that shows its claim now."""

    test: str
    claim: str
    shown_by: str


def _plain(name: str) -> str:
    return name.replace("[", "<").replace("]", ">")


def _read(table: str) -> list[dict[str, Any]]:
    documents = [tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(_FOLDER.glob("*.toml"))]
    return [entry for document in documents for entry in document.get(table, [])]


LEFT_OUT: Final[Sequence[LeftOut]] = [
    LeftOut(entry["file"], tuple(entry["names"]), entry["claim"], tuple(entry["shown_by"]))
    for entry in _read("left_out")
]
MERGED: Final[Sequence[Merged]] = [Merged(**entry) for entry in _read("merged")]


def mark_left_out(items: Sequence[pytest.Item]) -> None:
    """Mark the tests of `LEFT_OUT` as `long`."""
    by_file: defaultdict[str, list[LeftOut]] = defaultdict(list)
    for entry in LEFT_OUT:
        by_file[f"tests/{entry.file}"].append(entry)
    for item in items:
        entries = by_file.get(item.nodeid.partition("::")[0], ())
        if any(entry.includes(item.nodeid) for entry in entries):
            item.add_marker(pytest.mark.long)
