"""The page of task files: a sample with every field, and tables of the fields."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import model_tables
from pages import code, page, table

from sandherd.client.repositories.source import RepositorySource
from sandherd.client.tasks.batch import INTERNAL
from sandherd.client.tasks.resume import ResumeSource
from sandherd.contracts.agent_server import AgentServer
from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.continuous import Continuous
from sandherd.contracts.repositories import CoAuthor
from sandherd.contracts.specs import RetryPolicy, SandboxLimits, TaskSpec

SAMPLE: Final = Path(__file__).parent.parent / "examples" / "batch" / "all-fields.yaml"
_ABOUT: Final = """\
A task file is a YAML or JSON file. It contains a mapping whose key `tasks` has a list of tasks; each task is a mapping
with the fields below. `sandherd tasks submit FILE` submits the tasks
([an example](operating.md#submit-tasks-and-follow-them)). A file with a single task can also be the task of a schedule
(`sandherd schedules create NAME --cron … FILE`). If a field is unknown or invalid, no task of the file is submitted.
This is a minimal file, in which the task has a text and a program:

```yaml
tasks:
  - text: Count the files
    argv: [sh, -c, "ls | wc -l"]
```

## All fields

This sample shows every field ([all-fields.yaml](../examples/batch/all-fields.yaml)):

"""
_IN_A_FILE: Final = (
    ("text", "text, required", "What is to be done."),
    (
        "harness",
        "[a harness](harnesses.md)",
        (
            "The kind of the agent, `kind`, and its fields. Without `harness` and `argv`, the task has the default "
            "harness of its project."
        ),
    ),
    (
        "name",
        "text",
        "The name of the task in this file, for `depends_on` and `inputs`, and in the output of commands.",
    ),
    (
        "task",
        "text",
        (
            "The name of the task in the herd. With a name, the file can be submitted again without creating the task "
            "twice. Without it, the task gets a new name."
        ),
    ),
    ("argv", "list of texts", "The program that does the task: short for `harness: {kind: command, argv: […]}`."),
    ("depends_on", "list of names", "Other tasks of this file that have to be completed before this task begins."),
    ("after", "list of names", "Tasks submitted earlier that have to be completed before this task begins."),
    (
        "inputs",
        "list of `{from, paths}`",
        (
            "Files from the results of tasks that this task depends on "
            "([an example](operating.md#submit-tasks-and-follow-them))."
        ),
    ),
    ("matrix", "mapping", "Creates one task for each combination of values ([matrices](operating.md#matrices))."),
    (
        "repository",
        "[repository](#repository), or text",
        (
            "The git repository that the task works on. A text is the URL of a repository, or the path of a local one, "
            "relative to this file."
        ),
    ),
    (
        "resume",
        "[resume](#resume), or text",
        "The earlier task whose session this task continues ([resuming](operating.md#resuming-from-an-earlier-task)).",
    ),
)
"""Fields of a file that a task spec lacks, or has in another form."""
_PARTS: Final = (
    SandboxLimits, RetryPolicy, RepositorySource, ResumeSource, Continuous, Constraints, BudgetLimits, AgentServer,
    CoAuthor,
)  # fmt: skip
_NAMES: Final = {
    "SandboxLimits": "limits",
    "RetryPolicy": "retry",
    "RepositorySource": "repository",
    "PullRequestOptions": "pull_request",
    "ResumeSource": "resume",
    "Continuous": "continuous",
    "Validation": "validation",
    "Constraints": "constraints",
    "BudgetLimits": "budget",
    "AgentServer": "agent_server",
    "CoAuthor": "co_author",
    "ErrorType": "errors",
}
"""For each model, the field of a file that has it as its value. The field is the title of the model's section."""
_WORDS: Final = {
    " or `None`": "",
    "`str`": "text",
    "`int`": "whole number",
    "`float`": "number",
    "`bool`": "true or false",
    "`datetime`": "time",
    "`dict` of text to text": "mapping of texts",
    "`tuple` of": "list of",
    "`frozenset` of": "list of",
    "`False`": "`false`",
    "`True`": "`true`",
    "; None:": "; without it:",
    "None:": "Without it:",
    "`contracts.failures` defines which errors are retried": "[errors.md](errors.md) states which errors are retried",
}
"""The words for YAML that replace those for Python."""
_BUDGET: Final = "A file may also use units: `{cost: 2usd, tokens: 500k, turns: 50, wall_time: 90m}`.\n"


def task_files() -> str:
    """The whole page."""
    return page(
        "Task files",
        "libs/sandherd/contracts/specs.py, docs/task_files_page.py",
        f"{_ABOUT}```yaml\n{SAMPLE.read_text(encoding='utf-8')}```\n",
        "## Fields of a task\n",
        _in_yaml(table(("field", "type", "default", "meaning"), _fields())),
        "## Fields of mappings\n",
        *(f"{_in_yaml(part).strip()}\n" for part in _parts()),
    )


def _in_yaml(text: str) -> str:
    """The text with the titles and words of a file, in place of those of Python."""
    for model, field in _NAMES.items():
        text = text.replace(f"[{model}](#{model.lower()})", f"[{field}](#{field})")
        text = text.replace(f"### {model}", f"### {field}")
    for word, other in _WORDS.items():
        text = text.replace(word, other)
    return text


def _fields() -> Iterator[tuple[str, ...]]:
    own = {name for name, _, _ in _IN_A_FILE}
    yield from ((code(name), kind, "", meaning) for name, kind, meaning in _IN_A_FILE)
    yield from model_tables.rows(TaskSpec, without=own | INTERNAL)


def _parts() -> Iterator[Any]:
    for part in model_tables.tables(_PARTS):
        yield part
        if part.startswith("How much may be used"):
            yield _BUDGET
