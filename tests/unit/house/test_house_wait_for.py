"""Waiting with a bound is done in the one way that never swallows a cancellation."""

import ast
import asyncio
from collections.abc import Iterator
from typing import Any

from tests.patience import PATIENCE

REASONS: dict[str, str] = {}
"""Files that may use `asyncio.wait_for`, each with the reason why a cancellation can't be lost there."""


def test_nothing_waits_in_a_way_that_swallows_a_cancellation(product: list[Any]) -> None:
    """`asyncio.wait_for` stands in no file without a reason; `async with asyncio.timeout(…)` does the same, safely.

    In Python 3.11 it returns as if nothing had been when it is cancelled in the turn of the loop in which what it
    waits for is done: the loop around it goes on, and its canceller waits for ever.
    """
    assert {source.name for source in product if "wait_for" in source.text and any(uses(source.tree))} == REASONS.keys()


def test_no_task_group_in_the_product(product: list[Any]) -> None:
    """`asyncio.TaskGroup` cancels a task once, and waits forever for one that swallows it: use `run_until_first`."""
    named = [source for source in product if "TaskGroup" in source.text]
    assert [source.name for source in named if "TaskGroup" in {*attributes(source.tree)}] == []


def attributes(tree: ast.AST) -> Iterator[str]:
    """The names of all attributes and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def uses(tree: ast.AST) -> Iterator[int]:
    """The lines that use `asyncio.wait_for`, however it came there."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="asyncio"), attr="wait_for"):
                yield node.lineno
            case ast.ImportFrom() if any(alias.name == "wait_for" for alias in node.names):
                yield node.lineno


def test_wait_for_is_found_in_every_form() -> None:
    """Called, handed on, or imported by its name; a condition variable's own `wait_for` is another thing."""
    found = ["await asyncio.wait_for(x, 1)", "wait = asyncio.wait_for", "from asyncio import wait_for as bounded"]
    assert all(list(uses(ast.parse(f"async def f():\n    {line}"))) == [2] for line in found)
    assert list(uses(ast.parse("async def f():\n    await self.condition.wait_for(ready)"))) == []


async def test_permitted_wait_preserves_a_cancellation() -> None:
    """The event is set and the waiter cancelled in one turn: it ends, and does not continue."""
    event = asyncio.Event()

    async def wait_on() -> None:
        while True:
            event.clear()
            async with asyncio.timeout(PATIENCE):
                await event.wait()

    waiter = asyncio.create_task(wait_on())
    await asyncio.sleep(0)
    event.set()
    waiter.cancel()
    done, _ = await asyncio.wait([waiter], timeout=30)
    assert done
    assert waiter.cancelled()
