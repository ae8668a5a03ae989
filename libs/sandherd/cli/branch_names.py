"""Finds the branch that a user names: by its name, its id, a unique beginning of its id, or one of its tasks."""

import re
from typing import Final

from sandherd.cli.name_prefixes import PAGE, PAGES, full_name
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import BranchView

_BEGINNING: Final = re.compile(r"br-[0-9a-f]{6,19}")
"""Matches the beginning of an id. A shorter text is used as the name of a branch."""
_SHOWN: Final = 5


async def branch_named(herd: Herd, name: str) -> BranchView:
    """The branch. Raises `HerdError`; if several ids begin with the name, the error names them."""
    if not _BEGINNING.fullmatch(name):
        return await herd.branch(await full_name(herd, name, "task"))
    matches = await _matches(herd, name)
    if len(matches) > 1:
        shown = ", ".join(view.id for view in matches[:_SHOWN])
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"several ids begin with {name}: {shown}",
            field="branch",
            remedy="give more of its letters",
        )
    return matches[0] if matches else await herd.branch(name)


async def _matches(herd: Herd, start: str) -> list[BranchView]:
    cursor: str | None = None
    found: list[BranchView] = []
    for _ in range(PAGES):
        page = await herd.branches(limit=PAGE, cursor=cursor)
        found += [view for view in page.branches if view.id.startswith(start)]
        if (cursor := page.next_cursor) is None:
            break
    return found
