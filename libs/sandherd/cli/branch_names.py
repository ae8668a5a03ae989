"""Finds the branch that a user names: by its name, its id, a unique beginning of its id, or one of its tasks."""

import re
from typing import Final

from sandherd.cli.name_prefixes import MAX_PAGES, PAGE_SIZE, full_name
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import BranchView

_BEGINNING: Final = re.compile(r"br-[0-9a-f]{6,19}")
"""Matches the beginning of an id. A shorter text is used as the name of a branch."""
_MAX_LISTED: Final = 5


async def find_branch(herd: Herd, name: str) -> BranchView:
    """The branch that a user names. Raises `HerdError`. If several ids begin with the name, the error lists them."""
    if not _BEGINNING.fullmatch(name):
        return await herd.branch(await full_name(herd, name, "task"))
    matches = await _matches(herd, name)
    if len(matches) > 1:
        ids = ", ".join(view.id for view in matches[:_MAX_LISTED])
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"several ids begin with {name}: {ids}",
            field="branch",
            remedy="give more of its letters",
        )
    return matches[0] if matches else await herd.branch(name)


async def _matches(herd: Herd, start: str) -> list[BranchView]:
    cursor: str | None = None
    matches: list[BranchView] = []
    for _ in range(MAX_PAGES):
        page = await herd.branches(limit=PAGE_SIZE, cursor=cursor)
        matches += [view for view in page.branches if view.id.startswith(start)]
        if (cursor := page.next_cursor) is None:
            break
    return matches
