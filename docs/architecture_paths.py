"""The paths in docs/architecture.md: the files that an event or a task passes, and the files that these use."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "architecture.md"
DRIVER: Final = "Driver to line"
"""The part of the path of an event that only an event of a driver passes."""
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


def passed(found: list[Step]) -> int:
    """The number of files that are passed: those of the first column."""
    return len({step.file for step in found})


def event_from_line() -> list[Step]:
    """The path of an event without the driver, from its line to its row: that of a program with the harness `command`.

    With a driver, another file takes the place of this harness, so the number of files differs by those of the driver.
    """
    driver = steps("an event", DRIVER)
    return [step for step in steps("an event") if step not in driver]


def event_counts() -> str:
    """The numbers of files that an event passes, without and with a driver, and the number of all files of the path."""
    found = steps("an event")
    without_driver, used = passed(event_from_line()), len(files(found))
    return (
        f"An event passes {without_driver} files from its line to its row. With the harness `claude`, it passes "
        f"{passed(found)} files. With those of\nthe last column, {used} files are involved.\n"
    )


def task_counts() -> str:
    """The number of files that a task passes, and the number of all files of the path."""
    found = steps("a task")
    used = len(files(found))
    return f"A task passes {passed(found)} files. With those of the last column, {used} files are involved.\n"


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
