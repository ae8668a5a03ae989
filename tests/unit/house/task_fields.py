"""Compares the fields of `TaskSpec` with every view of a task that can't be derived from it.

A field is declared in `TaskSpec` and has to be in each view below, or in its list of what is left out, with the reason.
Task files, workers' files, JSON Schemas and AsyncAPI are derived: there is nothing to compare. As a program, it prints
what is missing: that is how the recipe in CONTRIBUTING.md is tested on a copy of the sources.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from event_ingest.batch_statements import FOLD_TASKS
from event_ingest.migrator import read_migrations
from event_ingest.queries import tasks_and_sandboxes
from event_ingest.read_models import TaskRow
from sandherd.cli.commands.run import run
from sandherd.contracts.events.task import TaskSubmitted
from sandherd.contracts.requests import TaskView
from sandherd.contracts.specs import TaskSpec
from spawner.tasks import task_secrets, task_transitions
from spawner.tasks.task_record import TaskRecord

HERE: Final = "tests/unit/house/task_fields.py"
_OWN_COMMAND: Final = "not shown; `sandherd tasks get` shows what a user waits for"
_OF_SANDBOX: Final = "of the sandbox, which has a view of its own"
_CLOSED: Final = "no free text: nothing in it can be a secret's value"
_SECRET: Final = "never shown"


@dataclass(frozen=True)
class View:
    """A view of a task, and where it is edited."""

    name: str
    file: str
    has: frozenset[str]
    other_names: Mapping[str, str] = field(default_factory=dict)
    """Names in the view of fields that are called otherwise in `TaskSpec`."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Fields that it does not have, each with the reason."""

    def problems(self, declared: Iterable[str]) -> list[str]:
        """What differs, each with what to do."""
        missing = [name for name in declared if name not in self.left_out and self._named(name) not in self.has]
        known = set(declared)
        stale = [name for name in {*self.left_out, *self.other_names} if name not in known]
        both = [name for name in self.left_out if self._named(name) in self.has and name in known]
        return [
            *(
                f"TaskSpec.{name} is not in {self.name}: add it in {self.file}, or state the reason in {HERE}"
                for name in missing
            ),
            *(f"{self.name}: {name} is no field of TaskSpec: delete it in {HERE}" for name in sorted(stale)),
            *(f"{self.name} has {name}: delete it from what is left out in {HERE}" for name in both),
        ]

    def _named(self, name: str) -> str:
        return self.other_names.get(name, name)


def keywords(function: Callable[..., Any], called: str) -> frozenset[str]:
    """The keywords of the call of this name in a function."""
    calls = (node for node in ast.walk(_tree(function)) if isinstance(node, ast.Call))
    found = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == called)
    return frozenset(word.arg for call in found for word in call.keywords if word.arg)


def keys(function: Callable[..., Any]) -> frozenset[str]:
    """The keys of the dictionaries in a function, as far as they are written out."""
    found = (node for node in ast.walk(_tree(function)) if isinstance(node, ast.Dict))
    return frozenset(
        key.value for one in found for key in one.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
    )


def migrated_columns(table: str) -> frozenset[str]:
    """The columns that the migrations of the history create in a table."""
    sql = "\n".join(migration.sql for migration in read_migrations())
    (created,) = re.findall(rf"^create table {table} \((.*?)^\)", sql, re.DOTALL | re.MULTILINE)
    altered = "".join(re.findall(rf"^alter table {table}\b(.*?);", sql, re.DOTALL | re.MULTILINE))
    return frozenset(re.findall(r"^ {4}(?!primary)(\w+) ", created, re.MULTILINE)) | frozenset(
        re.findall(r"\badd column (\w+)", altered)
    )


def _tree(function: Callable[..., Any]) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


_NOT_PUBLISHED: Final = {
    **dict.fromkeys(("image", "limits", "ttl_seconds", "agent_server"), _OF_SANDBOX),
    **dict.fromkeys(("env", "secret_env", "sealed", "secrets", "files"), _SECRET),
    **dict.fromkeys(("continuous", "linger_seconds", "on_retry", "keep_work"), _OWN_COMMAND),
    "kind": "in the event agent.started",
    "max_intervention": "in the event sandbox.requested; `sandherd monitor show` shows it",
    "constraints": "in the event sandbox.requested, together with those of its project, its profile and the herd",
    "inputs": "`depends_on` shows the tasks; the agent finds the files in its work tree",
    **dict.fromkeys(("attempt_seconds", "task_seconds"), "a limit is published when it ends the task"),
    "co_author": "a name and an address: in the commits, where the user wants them, and nowhere else",
    "budget": "in the event sandbox.requested; `sandherd budgets list` shows it with what was used",
    "no_repository": "`repository` shows the one that it works on, its own or its project's",
}
_NOT_IN_TABLE: Final = {
    **_NOT_PUBLISHED,
    **dict.fromkeys(("resume", "work", "repository"), "in the event task.submitted only"),
}
VIEWS: Final = (
    View(
        "the options of `sandherd run`",
        "libs/sandherd/cli/commands/run.py and libs/sandherd/cli/parse/task_spec.py",
        frozenset(inspect.signature(run).parameters),
        other_names={
            "limits": "memory",
            "secrets": "secret",
            "files": "file",
            "work": "directory",
            "repository": "repo",
            "no_repository": "no_repo",
            "co_author": "with_co_author",
            "constraints": "forbid_command",
            "continuous": "until",
            "linger_seconds": "linger",
            "attempt_seconds": "attempt_timeout",
            "task_seconds": "task_timeout",
            "retry": "attempts",
        },
        left_out={
            "sealed": "the client fills it in",
            "inputs": "a file of tasks has it, beside the tasks that it takes files from",
            "ttl_seconds": "the sandbox of a task ends with the task; `--task-timeout` limits that",
        },
    ),
    View(
        "the event task.submitted",
        "libs/sandherd/contracts/events/task.py and services/spawner/spawner/tasks/task_transitions.py",
        frozenset(TaskSubmitted.model_fields) & keywords(task_transitions.submitted, "TaskSubmitted"),
        other_names={"text": "task", "retry": "max_attempts", "resume": "resumes"},
        left_out=_NOT_PUBLISHED,
    ),
    View(
        "the view of a task",
        "TaskView in libs/sandherd/contracts/requests/live_state.py, and `view` in services/spawner/spawner/tasks/"
        "task_record.py",
        frozenset(TaskView.model_fields) & keywords(TaskRecord.view, "TaskFacts"),
        other_names={"retry": "max_attempts"},
        left_out={
            **{name: reason for name, reason in _NOT_PUBLISHED.items() if name != "secret_env"},
            **dict.fromkeys(("resume", "work"), "`sandherd events` shows it, in task.submitted"),
        },
    ),
    View(
        "the table of tasks in Postgres",
        "TaskRow in services/event-ingest/event_ingest/read_models.py, and batch_statements.py beside it",
        frozenset(column.name for column in fields(TaskRow) if FOLD_TASKS.count(column.name) > 1),
        other_names={"retry": "max_attempts"},
        left_out=_NOT_IN_TABLE,
    ),
    View(
        "the columns of the table of tasks in Postgres",
        "a new migration in services/event-ingest/event_ingest/migrations",
        migrated_columns("tasks"),
        other_names={"retry": "max_attempts"},
        left_out=_NOT_IN_TABLE,
    ),
    View(
        "the view of a task from the history",
        "services/event-ingest/event_ingest/queries/tasks_and_sandboxes.py",
        keywords(tasks_and_sandboxes._task_view, "TaskView"),
        other_names={"retry": "max_attempts"},
        left_out=_NOT_IN_TABLE,
    ),
    View(
        "what is searched for secrets when a task has ended",
        "`without_secrets` and `fields_with_secrets` in services/spawner/spawner/tasks/task_secrets.py",
        keys(task_secrets.without_secrets) & keys(task_secrets.fields_with_secrets),
        left_out={
            **dict.fromkeys(("secret_env", "sealed", "secrets"), "names, or encrypted"),
            **dict.fromkeys(("profile", "runtime", "image", "limits", "ttl_seconds", "agent_server"), _CLOSED),
            **dict.fromkeys(("kind", "budget"), _CLOSED),
            "max_intervention": _CLOSED,
            "constraints": "patterns of paths and commands, which are published for the monitor",
            "inputs": "paths, which name files like the keys of `files`",
            "labels": "names that a user gives things, like the task's own; nothing else may be in them",
            **dict.fromkeys(("linger_seconds", "priority", "deadline", "depends_on", "retry", "on_retry"), _CLOSED),
            **dict.fromkeys(("attempt_seconds", "task_seconds", "keep_work", "resume", "work", "repository"), _CLOSED),
            "no_repository": _CLOSED,
            "co_author": "the user publishes it with the commits",
        },
    ),
)


def problems() -> list[str]:
    """All differences between `TaskSpec` and its views."""
    return [problem for view in VIEWS for problem in view.problems(tuple(TaskSpec.model_fields))]


if __name__ == "__main__":
    sys.exit("\n".join(problems()) or None)
