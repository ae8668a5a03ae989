"""Tables of the fields of models: of the arguments and results of the methods of `Herd`, and of models inside them."""

import ast
import dataclasses
import inspect
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pages import EMPTY, code, table
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from sandherd.contracts.harnesses import HARNESSES

HEAD: Final = ("field", "type", "default", "meaning")
_HARNESSES: Final = "[a harness](harnesses.md)"
_USUAL: Final[Mapping[str, str]] = {
    "attempt": "The number of the attempt, from 1.",
    "cache_read_tokens": "Tokens read from a cache.",
    "cache_write_tokens": "Tokens written to a cache.",
    "cores": "Number of CPU cores.",
    "cost_micro_usd": "The cost, in millionths of a US dollar.",
    "cpu_seconds": "Maximum CPU time of each process, in seconds.",
    "created_at": "When it was created.",
    "depends_on": "Tasks that have to be completed before.",
    "ended_at": "When it ended.",
    "env": "Variables of the agent's process, by name.",
    "error": "Why it failed, for users to read.",
    "error_type": "The kind of the error: [errors.md](errors.md).",
    "expires_at": "When it expires.",
    "host": "The machine that it runs on.",
    "limits": "The limits of the sandbox.",
    "longest_delay_seconds": "The maximum delay before a retry.",
    "max_attempts": "Maximum number of attempts.",
    "max_iterations": "Maximum number of iterations.",
    "memory_mb": "Memory, in MiB.",
    "next_cursor": "The cursor of the next page; `None`: this is the last one.",
    "open_files": "Maximum number of open files of each process.",
    "priority": "The priority: [scheduling.md](scheduling.md#the-formula).",
    "processes": "Maximum number of processes in the sandbox.",
    "profile": "The profile: a named set of limits and permissions of sandboxes.",
    "requested_at": "When it was requested.",
    "result": "What its agent has reported at the end.",
    "retry": "How often a failed task is attempted again, and after which delays.",
    "runtime": "What creates and runs sandboxes: [runtimes.md](runtimes.md).",
    "score": "A task with a higher score is scheduled earlier.",
    "size": "In bytes.",
    "started_at": "When it started.",
    "stream_sequence": "The number of the event in its stream.",
    "submitted_at": "When it was submitted.",
    "updated_at": "When it was last changed.",
}
"""The meanings of fields without a docstring in their class, by the name of the field."""
_UNIONS: Final = frozenset({Union, types.UnionType})


def tables(models: Sequence[type[Any]]) -> Iterator[str]:
    """A section for each of these models, and then for each model that their fields refer to."""
    waiting, shown = list(models), set(models)
    while waiting:
        model = waiting.pop(0)
        yield f"### {model.__name__}"
        yield inspect.cleandoc(model.__doc__ or "")
        yield _values(model) if issubclass(model, Enum) else table(HEAD, rows(model))
        for one in sorted(_referred(model) - shown, key=lambda one: one.__name__):
            waiting.append(one)
            shown.add(one)


def _values(kind: type[Enum]) -> str:
    return ", ".join(code(one.value) for one in kind)


def rows(model: type[Any], without: Collection[str] = ()) -> Iterator[tuple[str, ...]]:
    """A row for each field of a model."""
    meanings = _docstrings(model)
    for name, (annotation, default) in _fields(model).items():
        if name in without:
            continue
        meaning = meanings.get(name) or _USUAL.get(name, EMPTY)
        yield code(name), type_text(annotation), default, meaning


def _fields(model: type[Any]) -> dict[str, tuple[Any, str]]:
    """The type and the default of each public field."""
    if issubclass(model, BaseModel):
        return {name: (field.annotation, _default_text(field)) for name, field in model.model_fields.items()}
    kinds = inspect.get_annotations(model, eval_str=True)
    return {
        one.name: (kinds.get(one.name, one.type), _default_text(one))
        for one in dataclasses.fields(model)
        if not one.name.startswith("_")
    }


def _default_text(field: Any) -> str:
    absent = {PydanticUndefined, dataclasses.MISSING, None}
    made = field.default_factory if field.default_factory not in absent else None
    if field.default in {PydanticUndefined, dataclasses.MISSING} if made is None else False:
        return "required"
    value = made() if made is not None else field.default
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, BaseModel):
        return EMPTY
    return EMPTY if value is None or value == "" or (hasattr(value, "__len__") and not value) else code(value)


def type_text(kind: Any) -> str:
    """A type as text, with links to the sections of models."""
    kind = _plain(kind)
    if _is_harness(kind):
        return _HARNESSES
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(code(repr(one) if isinstance(one, int) else one) for one in inner)
    if origin in _UNIONS:
        return " or ".join(dict.fromkeys(type_text(one) for one in inner if one is not type(None))) + (
            " or `None`" if type(None) in inner else ""
        )
    if origin is not None:
        parts = [type_text(one) for one in inner if one is not Ellipsis]
        return f"{code(origin.__name__)} of {' to '.join(parts)}" if parts else code(origin.__name__)
    if _has_section(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return code(getattr(kind, "__name__", str(kind)).replace("AwareDatetime", "datetime"))


def _plain(kind: Any) -> Any:
    """The type without its annotations, such as bounds."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind


def _is_harness(kind: Any) -> bool:
    return bool(set(get_args(kind)) & set(HARNESSES.values())) or kind in HARNESSES.values()


def _has_section(kind: Any) -> bool:
    ours = isinstance(kind, type) and kind.__module__.startswith("sandherd")
    return ours and "[" not in kind.__name__ and (issubclass(kind, BaseModel | Enum) or dataclasses.is_dataclass(kind))


def _referred(model: type[Any]) -> set[type[Any]]:
    """The models in the types of a model's fields."""
    if issubclass(model, Enum):
        return set()
    return {found for kind, _ in _fields(model).values() for found in _sections_in(kind)}


def _sections_in(kind: Any) -> Iterator[type[Any]]:
    kind = _plain(kind)
    if _is_harness(kind):
        return
    if _has_section(kind):
        yield kind
    for one in get_args(kind):
        yield from _sections_in(one)


def _docstrings(model: type[Any]) -> dict[str, str]:
    """The docstrings below the fields of a class and of those that it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__module__.startswith("sandherd") and "[" not in base.__name__:
            found |= _own_docstrings(base)
    return found


def _own_docstrings(model: type[Any]) -> dict[str, str]:
    body = ast.parse(dedent(inspect.getsource(model))).body[0]
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(body.body if isinstance(body, ast.ClassDef) else [])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
