"""Several tasks from one file, which may wait for each other: read, put in order, or refused before anything is sent.

The file is YAML or JSON: a mapping with `tasks`, a list of task specs with a `name` each. `depends_on` names tasks of
the file; with `after` tasks that were submitted before. A name in the file is only that: the tasks themselves are
named anew, unless `task` gives the name. `resume` is a task that was submitted before, or a mapping of `task`, `fork`,
`attempt` and `work`; what it has left is looked up before anything is sent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

import yaml

from sandherd.client.errors import HerdError, checked_name, made
from sandherd.client.resuming import Earlier
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name

MOST: Final = 10_000
_SEE: Final = "see `sandherd tasks submit --help`"


@dataclass(frozen=True)
class Wanted:
    """One task of a file: what it is called there, what it will be called, and what it is."""

    label: str
    task: str
    spec: TaskSpec
    earlier: Earlier | None = None
    """What it goes on from."""


def read(path: Path) -> list[Wanted]:
    """The tasks of a file, each after those that it waits for. Raises `HerdError` that names the task and its field."""
    return ordered(_entries(_document(path), path))


def ordered(entries: Sequence[Mapping[str, Any]]) -> list[Wanted]:
    """The tasks, each after those that it waits for. Raises `HerdError` for one that is missing, or a circle."""
    named = _by_label(entries)
    tasks = {label: _task_name(label, entry) for label, entry in named.items()}
    waits = {label: list(entry.get("depends_on") or []) for label, entry in named.items()}
    for label, others in waits.items():
        _check_known(label, others, tasks)
    return [_wanted(label, named[label], tasks) for label in _sorted(waits)]


def _document(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise _error(f"{path}: {error.strerror}", "file", "name a file that can be read") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _error(f"{path}: this is neither YAML nor JSON: {error}", "file", "mend it") from None


def _entries(document: Any, path: Path) -> list[Mapping[str, Any]]:
    tasks = document.get("tasks") if isinstance(document, dict) else document
    if not isinstance(tasks, list) or not tasks or not all(isinstance(entry, dict) for entry in tasks):
        raise _error(f"{path}: there is no list of tasks in it", "tasks", _SEE)
    if len(tasks) > MOST:
        raise _error(f"{path}: {len(tasks)} tasks; at most {MOST} are taken at once", "tasks", "make it several files")
    return tasks


def _by_label(entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    named: dict[str, Mapping[str, Any]] = {}
    for number, entry in enumerate(entries, 1):
        label = str(entry.get("name") or entry.get("task") or f"task {number}")
        if label in named:
            raise _error(f"two tasks are called {label!r}", "name", "give each a name of its own")
        named[label] = entry
    return named


def _task_name(label: str, entry: Mapping[str, Any]) -> str:
    given = entry.get("task")
    return new_name("task") if given is None else checked_name(str(given), f"{label}: task")


def _check_known(label: str, others: Any, tasks: Mapping[str, str]) -> None:
    missing = [str(other) for other in others if other not in tasks]
    if missing:
        raise _error(
            f"{label}: it waits for {missing[0]!r}, which is not in the file",
            "depends_on",
            "add it, or name a task that was submitted before under `after`",
        )


def _sorted(waits: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Each after those that it waits for; what waits for nothing stays in the order of the file."""
    try:
        yield from TopologicalSorter(waits).static_order()
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise _error(
            f"these wait for each other: {circle}", "depends_on", "take one of them out of `depends_on`"
        ) from None


def _wanted(label: str, entry: Mapping[str, Any], tasks: Mapping[str, str]) -> Wanted:
    fields = {name: value for name, value in entry.items() if name not in {"name", "task", "after", "argv"}}
    if "argv" in entry:
        fields["harness"] = {"kind": "command", "argv": entry["argv"]}
    fields["depends_on"] = [*(tasks[other] for other in entry.get("depends_on") or []), *(entry.get("after") or [])]
    try:
        earlier = _earlier(fields)
        return Wanted(label, tasks[label], made(TaskSpec, **fields), earlier)
    except HerdError as error:
        problem = error.problem.model_copy(update={"message": f"{label}: {error.problem.message}", "remedy": _SEE})
        raise HerdError(problem) from None


def _earlier(fields: dict[str, Any]) -> Earlier | None:
    """What a task says of an earlier one, taken out of its fields; a whole `Resume` is left there."""
    said = fields.get("resume")
    if said is None or (isinstance(said, Mapping) and "session_id" in said):
        return None
    del fields["resume"]
    return made(Earlier, **(said if isinstance(said, Mapping) else {"task": said}))


def _error(message: str, field: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field=field, remedy=remedy)
