"""Modules that decide are pure: the time is passed to them."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter", "time_ns", "monotonic_ns"}
HOLDERS = {"datetime", "date", "time"}


def decisions() -> set[str]:
    """The modules that decide: one list, for import-linter and for this."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return set(next(contract for contract in contracts if contract["id"] == "decisions")["source_modules"])


def module_name(path: str) -> str:
    """`services/monitor/monitor/rules.py` as `monitor.rules`."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "libs" else parts[2:])


def is_decision(name: str) -> bool:
    """Whether a module is in the list, by itself or with its package."""
    listed = decisions()
    parts = name.split(".")
    return any(".".join(parts[:length]) in listed for length in range(1, len(parts) + 1))


def clocks(tree: ast.AST) -> Iterator[int]:
    """The lines that look at a clock."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
            holder = node.func.value
            if isinstance(holder, ast.Name) and holder.id in HOLDERS:
                yield node.lineno


def test_a_decision_does_not_look_at_the_clock(product: list[Any]) -> None:
    """Every module that decides exists, and is given `now` instead of asking for it."""
    found = {module_name(source.name).removesuffix(".__init__"): source for source in product}
    assert decisions() <= found.keys()
    deciding = sorted(name for name in found if is_decision(name))
    assert [f"{name}:{line}" for name in deciding for line in clocks(found[name].tree)] == []


def test_modules_called_decisions_are_in_the_list(product: list[Any]) -> None:
    """A module that by its name decides is held to the rule."""
    last_words = {"decisions", "transitions", "fold", "guardian"}
    names = {module_name(source.name) for source in product}
    deciding = {
        name for name in names if re.split(r"[._]", name)[-1] in last_words or name.endswith((".rules", ".retry_rules"))
    }
    assert {name for name in deciding if not is_decision(name)} == set()
