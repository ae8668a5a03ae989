"""The list of tests that `make test` leaves out names tests that exist, and tests that show each claim instead."""

import ast
from pathlib import Path

import pytest

from tests.left_out_tests import LEFT_OUT, MERGED, LeftOut

TESTS = Path(__file__).parents[2]


def functions(file: str) -> set[str]:
    """The names of a file's tests."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def left_out(file: str, function: str) -> bool:
    """Whether all tests of this function are left out."""
    return any(entry.includes(f"tests/{file}::{function}") and entry.includes(f"tests/{file}::{function}[x]")
               for entry in LEFT_OUT)  # fmt: skip


@pytest.mark.parametrize("entry", LEFT_OUT, ids=lambda entry: entry.file)
def test_each_test_that_is_left_out_names_its_claim_and_what_shows_it(entry: LeftOut) -> None:
    """The tests exist, and so do the tests that show their claim, which are not left out themselves."""
    known = functions(entry.file)
    assert {name.partition("[")[0] for name in entry.names} <= known
    assert entry.claim
    assert entry.shown_by
    for shown in entry.shown_by:
        file, _, function = shown.partition("::")
        assert function in functions(file), shown
        assert not left_out(file, function), shown


def test_each_merged_test_names_where_its_claim_is_tested() -> None:
    """That test exists, and `make test` runs it."""
    for merged in MERGED:
        file, _, function = merged.shown_by.partition("::")
        assert merged.claim
        assert function in functions(file), merged
        assert not left_out(file, function), merged


def test_a_pattern_includes_the_named_parameters_only() -> None:
    """`*` stands for any parameters, and brackets mean themselves."""
    run = LeftOut("a.py", ("test_a[x-*]", "test_b*"), "claim", ("b.py::test_c",))
    included = [name for name in ("test_a[x-1]", "test_a[y-1]", "test_a", "test_b", "test_b[q]") if
                run.includes(f"tests/a.py::{name}")]  # fmt: skip
    assert included == ["test_a[x-1]", "test_b", "test_b[q]"]
    assert not run.includes("tests/b.py::test_b")
