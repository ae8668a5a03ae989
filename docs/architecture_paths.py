"""The paths in docs/architecture.md: the files that an event or a task passes, and the files that these use."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "architecture.md"
_FILE: Final = re.compile(r"`([a-z0-9_/]+\.py)`")


@dataclass(frozen=True)
class Step:
    """A row of a table: the file that the event or task passes, and the files that it uses for that."""

    file: str
    uses: tuple[str, ...]


def steps(path: str, part: str | None = None) -> list[Step]:
    """The steps below the heading `## The path of {path}`; only those below `### {part}`, if it is given."""
    text = _below(PAGE.read_text(encoding="utf-8"), f"## The path of {path}\n")
    found = list(_rows(text if part is None else _below(text, f"### {part}\n")))
    assert found, (path, part)
    return found


def files(found: list[Step]) -> set[str]:
    """All files of these steps."""
    return {file for step in found for file in (step.file, *step.uses)}


def counts(path: str) -> str:
    """The number of files that are passed, and the number of all files of the path."""
    found = steps(path)
    passed = len({step.file for step in found})
    used = len(files(found))
    return f"{path.capitalize()} passes {passed} files. With those of the last column, {used} files are involved.\n"


def _below(text: str, heading: str) -> str:
    rest = text.partition(heading)[2]
    assert rest, heading
    level = heading.partition(" ")[0]
    return re.split(rf"(?m)^#{{2,{len(level)}}} ", rest)[0]


def _rows(text: str) -> Iterator[Step]:
    for line in text.splitlines():
        cells = line.strip("|").split("|")
        if line.startswith("| ") and (named := _FILE.findall(cells[0])):
            yield Step(located(named[0]), tuple(map(located, _FILE.findall(cells[-1]))))


def located(name: str) -> str:
    """The path from the root of a file that is named by its import path, as `sandherd/bus/connection.py`."""
    known = [f"libs/{name}", *(f"{folder.relative_to(ROOT)}/{name}" for folder in sorted(ROOT.glob("services/*")))]
    return next((path for path in known if (ROOT / path).is_file()), name)
