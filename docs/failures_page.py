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
The same situation may have different codes in different commands. For example, if a sandbox does not exist, a message
to it (`send_message`) is refused with `not_found`, but an answer to its approval (`answer_approval`) with `refused`.
"""
_FORMS: Final = {
    "data.spec.harness.argv": """The path of a field in the document that does not conform to its schema. A number is
    the index in an array. If a field is missing, it is the last part of the path. The path in a request begins at the
    request itself, because requests have no envelope: `types.0`.""",
    "spec.runtime": """The path of a field in the command's `data`. The schema permits its value, but this herd does
    not.""",
    "task": """The name in the subject, or of the object of the command. The object does not exist, its name is in use,
    it is not permitted, or its state is wrong. `sandbox` and `project` are used in the same way.""",
}
_SEVERAL: Final = """\
If an error concerns several fields, `field` names the object that contains them. For example, it is `data.spec.harness`
if the harness has no program. If no field is wrong, `field` is absent.
"""


def errors() -> str:
    """All error types and codes, with their class, their origin and their meaning."""
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
        "A failed attempt has an `error_type`. A refused request, command or message has a `code`.\n",
        "## Error types\n",
        "Only the `error_type` of a failed attempt decides whether it is retried, never the error's text.\n\n"
        "- *transient*: a retry may succeed. A new attempt is started if the task has attempts left.\n"
        "- *permanent*: a retry would fail again, or the end was requested. The task fails immediately.\n\n"
        "The field `retry.also` of a task lists permanent error types that are retried, too, such as `exit_status`.\n"
        "An error type that is not in this table is permanent.\n",
        table(("error type", "class", "reported by", "meaning"), rows),
        "## Codes\n",
        _CODES,
        table(("code", "meaning"), ((code(one), member_docs(Code)[one.name]) for one in Code)),
        "## Fields\n",
        "`field` names the wrong field or object. There are three forms:\n",
        table(("field", "meaning"), ((code(name), text) for name, text in _FORMS.items())),
        _SEVERAL,
    )


def finder(kind: ErrorType) -> str:
    """The services that may report an error of this type."""
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
