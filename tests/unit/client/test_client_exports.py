"""`sandherd.client` exports what a program needs: every type that a public method takes or returns."""

import ast
import inspect
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

import sandherd.client
from sandherd.client import EventFollower, EventStream, Execution, Herd, ReceivedEvent, SyncHerd

ASYNC: Final = (Herd, EventFollower, EventStream, Execution, ReceivedEvent)


def written(kind: type[Any]) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, dict[str, str]]]:
    """Public methods as they are written, each with the modules that names in its annotations come from."""
    for base in kind.__mro__:
        if not base.__module__.startswith("sandherd."):
            continue
        tree = ast.parse(inspect.getsource(sys.modules[base.__module__]))
        homes = {
            alias.asname or alias.name: f"{node.module}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == base.__name__)
        for method in found.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
                yield method, homes


def named(annotation: ast.expr | None) -> Iterator[ast.expr]:
    """The names in an annotation, also in a quoted one."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from named(ast.parse(annotation.value, mode="eval").body)
    elif isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        return
    elif isinstance(annotation, ast.Attribute | ast.Name):
        yield annotation
    elif annotation is not None:
        for child in ast.iter_child_nodes(annotation):
            if isinstance(child, ast.expr):
                yield from named(child)


def used(kind: type[Any]) -> Iterator[str]:
    """The names of our types in the signatures of public methods; constructors of the client itself are none."""
    own = {name for name, value in vars(sys.modules[kind.__module__]).items() if isinstance(value, type)}
    for method, homes in written(kind):
        if any(ast.unparse(one) == "classmethod" for one in method.decorator_list) and kind is not Herd:
            continue
        arguments = [*method.args.args, *method.args.kwonlyargs]
        for annotation in (*(one.annotation for one in arguments), method.returns):
            for name in named(annotation):
                if isinstance(name, ast.Attribute):
                    yield name.attr
                elif isinstance(name, ast.Name) and (
                    homes.get(name.id, "").startswith("sandherd.") or (name.id in own and name.id not in homes)
                ):
                    yield name.id


@pytest.mark.parametrize("kind", ASYNC)
def test_types_of_all_signatures_are_exported(kind: type[Any]) -> None:
    """A program imports them from one place, whatever a method takes or returns."""
    wanted = set(used(kind))
    assert wanted <= set(sandherd.client.__all__), sorted(wanted - set(sandherd.client.__all__))


def test_signatures_have_types() -> None:
    """The search above finds quoted types, types of a module, and types of base classes."""
    assert {"TaskSpec", "SandboxView", "EventFollower", "Execution", "SecretView"} <= set(used(Herd))


def test_exported_names_are_listed_and_exist() -> None:
    """`dir()` shows them, so that completion does, too; each is an object of its module."""
    assert set(sandherd.client.__all__) == set(sandherd.client._HOMES)
    assert set(sandherd.client.__all__) <= set(dir(sandherd.client))
    assert {"Herd", "SyncHerd", "NotReachedError", "TaskSpec"} <= set(sandherd.client.__all__)
    for name in sandherd.client.__all__:
        assert getattr(sandherd.client, name) is not None
    with pytest.raises(AttributeError):
        _ = sandherd.client.absent


def test_synchronous_client_has_every_method() -> None:
    """With the same parameters; `connection` is asynchronous."""
    wanted = {name for name in dir(Herd) if not name.startswith("_")}
    assert {name for name in dir(SyncHerd) if not name.startswith("_")} == wanted
    for name in wanted - {"project", "connect"}:
        assert list(inspect.signature(getattr(SyncHerd, name)).parameters) == list(
            inspect.signature(getattr(Herd, name)).parameters
        ), name
