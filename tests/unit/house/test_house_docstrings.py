"""Docstrings are read alone, in an editor or in a generated document, so each names its subject or its action."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from tests.unit.house.texts import nodes_of

_PREPOSITION: Final = r" (?:as|by|for|if|in|of|to|with|without)\b"
WITHOUT_SUBJECT: Final = re.compile(
    rf"(?:Of|Those|That of|Also|Likewise|Neither|Nor)\b|(?:The same|Not|One more)(?:[,;:.]|{_PREPOSITION})"
)
"""Words with which a docstring begins that continues a sentence which its reader does not see."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, its classes, functions and attributes, with their lines."""
    for node in nodes_of(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                yield line, text.strip()


def test_a_docstring_begins_with_its_subject_or_an_action(product: list[Any]) -> None:
    """None begins in the middle of a sentence, as "Of a task that has ended, …" and "The same for …" do."""
    found = [f"{source.name}:{line}" for source in product for line, text in docstrings(source.tree) if begins(text)]
    assert found == []


def begins(text: str) -> bool:
    """Whether a docstring begins without a subject."""
    return WITHOUT_SUBJECT.match(text) is not None


def test_a_docstring_without_a_subject_is_found() -> None:
    """So the test above does not pass because it finds nothing."""
    assert all(begins(text) for text in ("Of a task, its name.", "The same for bytes.", "Not if it is new.", "Also."))
    assert not any(begins(text) for text in ("Offers a socket.", "Notes of a task.", "The same call twice."))
