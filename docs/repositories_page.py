"""The generated part of docs/repositories.md: the rule by which branches are named."""

from collections.abc import Iterator

import pages

from sandherd.settings.repositories import BRANCH_PREFIXES
from spawner.repositories.branch_names import rules_of


def prefixes() -> str:
    """The default prefixes, each with its words."""
    return pages.table(("prefix", "words"), _rows())


def _rows() -> Iterator[pages.Row]:
    for prefix, known in rules_of(BRANCH_PREFIXES).items():
        yield pages.code(prefix), ", ".join(known) or "any other title"
