"""The page of error types: why an attempt fails, and what is retried. Generated from `contracts.failures`."""

import ast
import inspect
from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from textwrap import dedent
from typing import Final

from pages import EMPTY, code, page, table

from sandherd.contracts.events.agent import AgentFailed
from sandherd.contracts.failures import ErrorType, is_transient

_OF_AGENTS: Final = frozenset(AgentFailed.model_fields["error_type"].annotation.__args__)  # type: ignore[union-attr]  # a Literal


def errors() -> str:
    """All error types: transient or permanent, who reports it, and what it means."""
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
        "Error types",
        "libs/sandherd/contracts/failures.py",
        "Only the `error_type` of a failed attempt decides whether it is retried, never the error's text.\n"
        "*transient*: a retry may succeed; a new attempt is started while the task has attempts left.\n"
        "*permanent*: a retry would fail again, or the end was requested; the task fails immediately.\n"
        "A task may set permanent ones to be retried nevertheless, such as `exit_status`: `retry.also`.\n"
        "An error type that is not in this table is permanent.\n",
        table(("error type", "class", "reported by", "meaning"), rows),
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
