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
A task file is YAML or JSON: a mapping with `tasks`, a list with a mapping for each task. It is submitted by
`sandherd tasks submit FILE` ([an example](operating.md#submit-tasks-and-follow-them)); one with a single task can be
that of a schedule (`sandherd schedules create NAME --cron … FILE`). If a field is unknown or invalid, nothing is sent.
The shortest file has a text and a program:

```yaml
tasks:
  - text: Count the files
    argv: [sh, -c, "ls | wc -l"]
```

## All fields

Of a sample that shows every field, [all-fields.yaml](../examples/batch/all-fields.yaml):

"""
_IN_A_FILE: Final = (
    ("text", "text, required", "What is to be done."),
    (
        "harness",
        "[a harness](harnesses.md)",
        "The kind of agent, `kind`, with its fields. Without it, and without `argv`: the project's default.",
    ),
    ("name", "text", "The name in the file, for `depends_on` and `inputs`, and in the output of commands."),
    ("task", "text", "The name of the task itself, so that the file can be submitted again. Without it a new one."),
    ("argv", "list of texts", "The program that does the task: short for `harness: {kind: command, argv: […]}`."),
    ("depends_on", "list of names", "Tasks of the file that have to be completed before."),
    ("after", "list of names", "Tasks that were submitted before, and have to be completed before."),
    (
        "inputs",
        "list of `{from, paths}`",
        "Files of the results of tasks that it depends on; [an example](operating.md#submit-tasks-and-follow-them).",
    ),
    ("matrix", "mapping", "One task for each combination of values: [matrices](operating.md#matrices)."),
    (
        "repository",
        "[repository](#repository), or text",
        "The git repository that it works on: its URL, or the path of a local one, relative to the file.",
    ),
    (
        "resume",
        "[resume](#resume), or text",
        "The earlier task whose session it continues: [resuming](operating.md#resuming-from-an-earlier-task).",
    ),
)
"""Fields that only a file has, or that it has in another form than a task spec."""
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
"""The field whose value a model is, which is the title of its section."""
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
"""Words for YAML in place of those for Python."""
_BUDGET: Final = "In a file also by kind, with units: `{cost: 2usd, tokens: 500k, turns: 50, wall_time: 90m}`.\n"


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
    """The text with titles and words as a file has them."""
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
