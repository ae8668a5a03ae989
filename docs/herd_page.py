"""The page of `Herd`: examples, and every method with its signature, from the docstrings of the client."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final

from model_tables import tables
from pages import page
from pydantic import BaseModel

from sandherd import client
from sandherd.client import (
    EventArtifact,
    EventFollower,
    EventStream,
    Execution,
    Herd,
    HerdError,
    ListPage,
    NotReachedError,
    ReceivedEvent,
    ServiceUnavailableError,
    SyncHerd,
)

EXAMPLES: Final = Path(__file__).parent.parent / "examples" / "herd"
ORDER: Final = ("submit", "follow", "sandbox", "files", "batch", "without_asyncio")
_LEAD: Final = """\
`sandherd.client` is the client library for Python. Programs with asyncio use `Herd`; other programs use `SyncHerd`. The
package exports every type that the methods take or return, and has type annotations. `Herd.connect()` finds the broker
and the credential as the command `sandherd` does: in `NATS_URL` and `SANDHERD_CREDENTIALS`, or else in the stack that
`sandherd up` has started. A `Context` names another broker or credential. The examples are programs in
[examples/herd](../examples/herd); a test runs them.
"""
_TYPES: Final = """\
These types are the arguments and results of the methods. Fields that are not required may be omitted. Replies omit
fields whose value is `None`.
"""
_RESULTS: Final = (Execution, EventFollower, EventStream, ReceivedEvent, EventArtifact, ListPage)
_ERRORS: Final = (HerdError, ServiceUnavailableError, NotReachedError)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def herd() -> str:
    """The whole page."""
    pieces = [_LEAD, *(_example(name) for name in ORDER), "## Herd", _text(Herd), *_methods(Herd)]
    for kind in _RESULTS:
        pieces += [f"## {kind.__name__}", _text(kind), *_fields(kind), *_methods(kind)]
    pieces += ["## SyncHerd", _text(SyncHerd)]
    pieces += ["## Types", _TYPES, *tables(_models())]
    pieces += ["## Errors", *(f"`{kind.__name__}`: {_text(kind)}" for kind in _ERRORS)]
    return page("Herd", "libs/sandherd/client", "\n\n".join(piece.strip() for piece in pieces) + "\n")


def _models() -> list[type[Any]]:
    """The exported models and dataclasses that are described under Types."""
    exported = [getattr(client, name) for name in client.__all__]
    kinds = [one for one in exported if isinstance(one, type) and "[" not in one.__name__]
    return [one for one in kinds if (issubclass(one, BaseModel) or is_dataclass(one)) and one not in _RESULTS]


def _example(name: str) -> str:
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    title, _, program = source.partition('"""\n\n')
    return f"## Example: {name.replace('_', ' ')}\n\n{title.removeprefix(chr(34) * 3)}\n\n```python\n{program}```"


def _text(kind: type[Any]) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _methods(kind: type[Any]) -> Iterator[str]:
    """The public methods of a class and of those of ours that it inherits from, in the order of the sources."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("sandherd.client"):
            for method in _class_of(base).body:
                if isinstance(method, Function) and _is_shown(method) and method.name not in seen:
                    seen.add(method.name)
                    yield _method(method, vars(sys.modules[base.__module__]))


def _is_shown(method: Function) -> bool:
    decorators = {ast.unparse(one) for one in method.decorator_list}
    hidden = "overload" in decorators or (method.name == "start" and "classmethod" in decorators)
    return not method.name.startswith("_") and not hidden


def _method(method: Function, constants: Mapping[str, Any]) -> str:
    title = f"### {method.name}"
    text = inspect.cleandoc(ast.get_docstring(method) or "")
    if any(ast.unparse(one) == "property" for one in method.decorator_list):
        return f"{title}\n\n```python\n{method.name}: {_plain(method.returns)}\n```\n\n{text}"
    lines = _signature(method, constants)
    return f"{title}\n\n```python\n{lines}\n```\n\n{text}"


def _signature(method: Function, constants: Mapping[str, Any]) -> str:
    """The signature; in several lines if it is long."""
    begin = "async def" if isinstance(method, ast.AsyncFunctionDef) and not _yields(method) else "def"
    arguments = method.args
    shown = [_argument(one, default, constants) for one, default in _positional(arguments)]
    if arguments.vararg is not None:
        shown.append(f"*{arguments.vararg.arg}: {_plain(arguments.vararg.annotation)}")
    elif arguments.kwonlyargs:
        shown.append("*")
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    shown += [_argument(one, default, constants) for one, default in named]
    if arguments.kwarg is not None:
        shown.append(f"**{arguments.kwarg.arg}: {_plain(arguments.kwarg.annotation)}")
    line = f"{begin} {method.name}({', '.join(shown)}) -> {_plain(method.returns)}"
    if len(line) <= 100:  # what a page shows without scrolling
        return line
    return "\n".join([f"{begin} {method.name}(", *(f"    {one}," for one in shown), f") -> {_plain(method.returns)}"])


def _positional(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    own = arguments.args[1:]
    defaults = [None] * (len(own) - len(arguments.defaults)) + list(arguments.defaults)
    return zip(own, defaults, strict=True)


def _argument(one: ast.arg, default: ast.expr | None, constants: Mapping[str, Any]) -> str:
    shown = f"{one.arg}: {_plain(one.annotation)}"
    if default is None:
        return shown
    value = repr(constants[default.id]) if isinstance(default, ast.Name) else ast.unparse(default)
    return f"{shown} = {value}"


def _plain(annotation: ast.expr | None) -> str:
    """An annotation without quotes and the module of the requests."""
    if annotation is None:
        return "Any"
    text = ast.unparse(annotation)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        text = annotation.value
    return text.replace("'Herd'", "Herd").replace("requests.", "")


def _yields(method: Function) -> bool:
    return any(isinstance(node, ast.Yield) for node in ast.walk(method)) and not method.decorator_list


def _fields(kind: type[Any]) -> Iterator[str]:
    """The public fields of a model or dataclass, with their types and meanings."""
    body = _class_of(kind).body
    for at, one in enumerate(body):
        if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_"):
            following = body[at + 1] if at + 1 < len(body) else None
            meaning = ast.unparse(following).strip("'\"") if _is_docstring(following) and following else ""
            yield f"- `{ast.unparse(one.target)}: {_plain(one.annotation)}`" + (f": {meaning}" if meaning else "")


def _is_docstring(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _class_of(kind: type[Any]) -> ast.ClassDef:
    tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
