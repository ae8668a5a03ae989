"""The page of error types and codes: why an attempt fails and is retried, and why something was refused."""

import ast
import inspect
from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from textwrap import dedent
from typing import Final

from pages import EMPTY, code, page, table

from sandherd.contracts.errors import Code
from sandherd.contracts.events.agent import AgentFailed
from sandherd.contracts.failures import ErrorType, is_transient

_OF_AGENTS: Final = frozenset(AgentFailed.model_fields["error_type"].annotation.__args__)  # type: ignore[union-attr]  # a Literal
_CODES: Final = """\
The `code` of a refusal is in the `error` of a reply, in `task.rejected`, `task.refused`, `sandbox.refused`,
`message.refused` and `message.rejected`, and in the reason of a dead letter. Decide by the code, never by the message.
One situation may have two codes, by the service that finds it: a message to a sandbox that does not exist is
`not_found` (`send_message`), an answer to an approval in it `refused` (`answer_approval`).
"""
_FORMS: Final = {
    "data.spec.harness.argv": """A path in the document, as its schema found it; a number is an index of an array. For a
    request, which has no envelope, the path begins at its object: `types.0`. A missing field is the last part of the
    path.""",
    "spec.runtime": """A member of the command's `data`, in a refusal that was decided after the command was read: its
    schema permits the value, and this herd does not.""",
    "task": """Also `sandbox` and `project`: a name in the subject, or of what the command is about, which does not
    exist, is taken, is not permitted, or is in the wrong state.""",
}
_SEVERAL: Final = """\
If a rule concerns several fields, `field` is what contains them: `data.spec.harness` without a program. It is absent if
no field is to blame.
"""


def errors() -> str:
    """All error types and codes: which are transient, who reports them, and what they mean."""
    descriptions = member_docs(ErrorType)
    rows = (
        (
            code(kind),
            "transient" if is_transient(kind) else "permanent",
            finder(kind),
            descriptions.get(kind.name, EMPTY),
        )
        for kind in ErrorType
    )
    return page(
        "Error types and codes",
        "libs/sandherd/contracts/failures.py and errors.py",
        "An attempt that failed has an `error_type`. A refused request, command or message has a `code`.\n",
        "## Error types\n",
        "Only the `error_type` of a failed attempt decides whether it is retried, never the error's text.\n"
        "*transient*: a retry may succeed; a new attempt is started while the task has attempts left.\n"
        "*permanent*: a retry would fail again, or the end was requested; the task fails immediately.\n"
        "A task may set permanent ones to be retried nevertheless, such as `exit_status`: `retry.also`.\n"
        "An error type that is not in this table is permanent.\n",
        table(("error type", "class", "reported by", "meaning"), rows),
        "## Codes\n",
        _CODES,
        table(("code", "meaning"), ((code(one), member_docs(Code)[one.name]) for one in Code)),
        "## Fields\n",
        "`field` names what is wrong. There are three forms:\n",
        table(("field", "meaning"), ((code(name), text) for name, text in _FORMS.items())),
        _SEVERAL,
    )


def finder(kind: ErrorType) -> str:
    """Who reports it first."""
    return "the worker" if kind.value in _OF_AGENTS else "the spawner or the monitor"


def member_docs(kind: type[StrEnum]) -> Mapping[str, str]:
    """The docstrings below the members of an enumeration."""
    body = ast.parse(dedent(inspect.getsource(kind))).body[0]
    statements = body.body if isinstance(body, ast.ClassDef) else []
    return {
        member.targets[0].id: inspect.cleandoc(below.value.value)
        for member, below in pairwise(statements)
        if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
