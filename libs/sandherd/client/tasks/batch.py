"""Reads several tasks, which may depend on each other, from one file. Orders and checks them before any is sent.

The file is YAML or JSON: a mapping with `tasks`, a list of task specs with a `name` each. `depends_on` names tasks of
the file; `after` names tasks that were submitted before. `inputs` is a list of mappings with `from` and `paths`: files
from the results of both kinds of tasks. A task of the file from which others take files stores its result. A `name` is
only valid in the file: the tasks get new names, unless `task` gives the name. `resume` is a task that was submitted
before, or a mapping with `task`, `fork`, `attempt` and `work`; its stored session is looked up before anything is sent.
`repository` is a mapping with `url`, or `path` of a local one, and options (`batch_repository.py`). An entry with a
`matrix` is one task for each combination of its values (`matrix.py`).
"""

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

import yaml

from sandherd.client.argument_lists import argument_list
from sandherd.client.errors import HerdError, checked_name, validated
from sandherd.client.repositories.source import RepositorySource
from sandherd.client.secret_values import check_secret_values
from sandherd.client.tasks.batch_inputs import inputs_of
from sandherd.client.tasks.batch_repository import repository_of
from sandherd.client.tasks.entry_size import MAX_TASKS
from sandherd.client.tasks.matrix import expand_matrices
from sandherd.client.tasks.resume import ResumeSource
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.errors import Code
from sandherd.contracts.harnesses import PROJECT_DEFAULT
from sandherd.contracts.labels import BATCH_LABEL, LABEL_VALUE_PATTERN, NAME_LABEL, RESERVED_PREFIX
from sandherd.contracts.names import BATCH_PREFIX, new_name

_SEE: Final = "see docs/task-files.md, which shows every field, and `sandherd tasks submit --help`"
_LABEL_VALUE: Final = re.compile(LABEL_VALUE_PATTERN)
_OWN_FIELDS: Final = frozenset({"name", "task", "after", "argv"})
"""Fields of a task in a file that are not fields of a task spec."""
INTERNAL: Final = frozenset({"sealed", "work"})
"""Fields of a spec that only clients set."""
_FIELD_REMEDIES: Final = {
    "memory": "write `limits: {memory_mb: 4096}`",
    "cores": "write `limits: {cores: 2}`",
    "attempts": "write `retry: {max_attempts: 3}`",
}
"""Remedies for fields that are named like options of `sandherd run`."""
_ID_LETTERS: Final = 26
"""The length of a computed batch name without its prefix."""
_STANDARD_INPUT: Final = Path("-")


@dataclass(frozen=True)
class BatchTask:
    """One task of a file: its label in the file, its task name, and its spec."""

    label: str
    task: str
    spec: TaskSpec
    earlier: ResumeSource | None = None
    """The earlier task that this task resumes."""
    repository: RepositorySource | None = None
    """The local repository that is to be uploaded for this task."""

    @property
    def batch(self) -> str:
        """The name of the batch of the task."""
        return self.spec.labels[BATCH_LABEL]


def read(path: Path) -> list[BatchTask]:
    """The tasks of a file, each after its dependencies. Raises `HerdError`, which names the file, task and field."""
    entries = _entries(_document(path), path)
    try:
        return order_tasks(entries, Path() if path == _STANDARD_INPUT else path.parent)
    except HerdError as error:
        raise in_file(path, error) from None


def in_file(path: Path, error: HerdError) -> HerdError:
    """The error, with the path of the file in its message."""
    return HerdError(error.problem.model_copy(update={"message": f"{path}: {error.problem.message}"}))


def order_tasks(entries: Sequence[Mapping[str, Any]], folder: Path = Path()) -> list[BatchTask]:
    """The tasks, each after its dependencies. Raises `HerdError` for a missing dependency or a cycle.

    Paths of repositories are relative to `folder`.
    """
    named = _by_label(_within_maximum(expand_matrices(_within_maximum(entries))))
    tasks = {label: _task_name(label, entry) for label, entry in named.items()}
    batch = batch_name([tasks[label] for label, entry in named.items() if entry.get("task") is not None])
    dependencies = {label: list(entry.get("depends_on") or []) for label, entry in named.items()}
    for label, others in dependencies.items():
        _check_references(label, others, tasks)
    inputs = {label: inputs_of(label, entry, tasks) for label, entry in named.items()}
    sources = {item["task"] for items in inputs.values() for item in items}
    changes = {label: {"inputs": items} | _result_fields(tasks[label] in sources) for label, items in inputs.items()}
    return [
        _batch_task(label, {**named[label], **changes[label]}, tasks, batch, folder)
        for label in _sort_by_dependency(dependencies)
    ]


def batch_name(names: Sequence[str]) -> str:
    """The name of a batch: new without `names`, else computed from them, so that a file can be submitted again."""
    if not names:
        return new_name(BATCH_PREFIX.removesuffix("-"))
    return BATCH_PREFIX + hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()[:_ID_LETTERS]


def _document(path: Path) -> Any:
    try:
        text = sys.stdin.read() if path == _STANDARD_INPUT else path.read_text(encoding="utf-8")
        return yaml.safe_load(text)
    except OSError as error:
        raise _error(f"{path}: {error.strerror}", "file", "name a file that can be read") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise _error(f"{path}: neither YAML nor JSON: {_parse_error(error)}", "file", "fix it") from None


def _parse_error(error: Exception) -> str:
    """The parser's error with the line and column. Its own text would also repeat the line of the file."""
    if isinstance(error, UnicodeDecodeError | RecursionError):
        return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "it is nested too deep"
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"


def _entries(document: Any, path: Path) -> list[Mapping[str, Any]]:
    tasks = document.get("tasks") if isinstance(document, dict) else document
    if not isinstance(tasks, list) or not tasks or not all(isinstance(entry, dict) for entry in tasks):
        raise _error(f"{path}: no list of tasks in it", "tasks", _SEE)
    return tasks


def _within_maximum(entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if len(entries) > MAX_TASKS:
        raise _error(f"{len(entries)} tasks; the maximum is {MAX_TASKS}", "tasks", "split it into several files")
    return entries


def _by_label(entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    named: dict[str, Mapping[str, Any]] = {}
    for number, entry in enumerate(entries, 1):
        label = str(entry.get("name") or entry.get("task") or f"task {number}")
        if label in named:
            raise _error(f"two tasks are named {label!r}", "name", "give each a different name")
        named[label] = entry
    return named


def _task_name(label: str, entry: Mapping[str, Any]) -> str:
    name = entry.get("task")
    return new_name("task") if name is None else checked_name(str(name), f"{label}: task")


def _check_references(label: str, others: Any, tasks: Mapping[str, str]) -> None:
    missing = [str(other) for other in others if other not in tasks]
    if missing:
        raise _error(
            f"{label}: it depends on {missing[0]!r}, which is not in the file",
            "depends_on",
            "add it, or name a task that was submitted before under `after`",
        )


def _result_fields(is_source: bool) -> dict[str, bool]:  # noqa: FBT001  # one fact
    """The field that makes a task store its result, if another task of the file takes files from the result."""
    return {"keep_work": True} if is_source else {}


def _sort_by_dependency(dependencies: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The labels, each after its dependencies. Labels without dependencies stay in the order of the file."""
    try:
        yield from TopologicalSorter(dependencies).static_order()
    except CycleError as error:
        cycle = " → ".join(reversed(error.args[1]))
        raise _error(f"dependency cycle: {cycle}", "depends_on", "remove one of them from `depends_on`") from None


def _batch_task(label: str, entry: Mapping[str, Any], tasks: Mapping[str, str], batch: str, folder: Path) -> BatchTask:
    fields = {name: value for name, value in entry.items() if name not in _OWN_FIELDS}
    fields.setdefault("harness", {"kind": PROJECT_DEFAULT})
    fields["depends_on"] = [*(tasks[other] for other in entry.get("depends_on") or []), *(entry.get("after") or [])]
    _check_fields(label, fields)
    try:
        if "argv" in entry:
            fields["harness"] = {"kind": "command", "argv": argument_list(entry["argv"])}
        fields["labels"] = own_labels(fields.get("labels")) | _labels_of_batch(label, batch)
        repository, earlier = repository_of(fields, folder), _pop_earlier_task(fields)
        spec = validated(TaskSpec, **fields)
        if spec.sealed is None:
            check_secret_values({name: spec.env[name] for name in spec.secret_env})
        return BatchTask(label, tasks[label], spec, earlier, repository)
    except HerdError as error:
        problem = error.problem.model_copy(update={"message": f"{label}: {error.problem.message}", "remedy": _SEE})
        raise HerdError(problem) from None


def _check_fields(label: str, fields: Mapping[str, Any]) -> None:
    """Raise `HerdError` for an unknown field of a task, with the known fields."""
    unknown = next((name for name in fields if name not in TaskSpec.model_fields), None)
    if unknown is None:
        return
    known_fields = f"use some of: {', '.join(sorted([*_OWN_FIELDS, *TaskSpec.model_fields.keys() - INTERNAL]))}"
    remedy = _FIELD_REMEDIES.get(unknown, f"{known_fields}; {_SEE}")
    raise _error(f"{label}: {unknown} is not a field of a task", str(unknown), remedy)


def with_labels(tasks: Sequence[BatchTask], labels: Mapping[str, str]) -> list[BatchTask]:
    """The tasks with additional labels. A task's own labels have precedence. Raises `HerdError` for too many labels."""
    return [
        replace(task, spec=validated(TaskSpec, **dict(task.spec) | {"labels": {**labels, **task.spec.labels}}))
        for task in tasks
    ]


def own_labels(labels: Any) -> dict[str, Any]:
    """The labels that a user has set. Raises `HerdError` for reserved keys, and if the labels are not a mapping."""
    if not isinstance(labels or {}, Mapping):
        raise _error("labels: not a mapping", "labels", "write `labels: {key: value}`")
    for key in labels or {}:
        if str(key).startswith(RESERVED_PREFIX):
            raise _error(f"labels: {str(key)[:80]} is reserved", "labels", f"use a key without {RESERVED_PREFIX}")
    return dict(labels or {})


def _labels_of_batch(label: str, batch: str) -> dict[str, str]:
    """The labels that Sandherd sets: the batch, and the name in the file if it is valid as the value of a label."""
    named = {NAME_LABEL: label} if label and _LABEL_VALUE.fullmatch(label) else {}
    return {BATCH_LABEL: batch} | named


def _pop_earlier_task(fields: dict[str, Any]) -> ResumeSource | None:
    """Remove the field `resume`, and return its earlier task. A complete `Resume` is not removed."""
    resumed = fields.get("resume")
    if resumed is None or (isinstance(resumed, Mapping) and "session_id" in resumed):
        return None
    del fields["resume"]
    return validated(ResumeSource, **(resumed if isinstance(resumed, Mapping) else {"task": resumed}))


def _error(message: str, field: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field=field, remedy=remedy)
