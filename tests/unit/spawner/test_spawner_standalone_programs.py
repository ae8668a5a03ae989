"""Programs that run without any package: each has its own copy of what it can't import."""

import ast
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from sandherd_network import namespace

from spawner.runtimes import launcher, nsenter_child


def statements(function: Callable[..., Any]) -> list[str]:
    """The statements of a function, without its docstring."""
    (definition,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(definition, ast.FunctionDef)
    return [ast.unparse(statement) for statement in definition.body[1:]]


@pytest.mark.parametrize("function", [namespace.drop_capabilities, nsenter_child.drop_capabilities])
def test_programs_drop_capabilities_in_the_same_way(function: Callable[..., Any]) -> None:
    """One of them first also drops the bounding set, because it enters a sandbox as root."""
    capset = statements(launcher._drop_capabilities)
    assert statements(function)[-len(capset) :] == capset


def test_programs_have_the_same_numbers() -> None:
    """These are numbers of the kernel."""
    assert namespace._CAPABILITIES_3 == launcher._CAPABILITIES_3 == nsenter_child._CAPABILITIES_3
    assert launcher._KEYCTL == nsenter_child._KEYCTL
    assert launcher._JOIN_SESSION_KEYRING == nsenter_child._JOIN_SESSION_KEYRING
