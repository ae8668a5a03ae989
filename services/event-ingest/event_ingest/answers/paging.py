"""Pages: full, bounded in bytes, and one after the other without a row twice or left out."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from sandherd.contracts.names import FLEET

ROOM_FOR_THE_REST: Final = 16 * 1024
"""Of an answer's bytes: for what is not rows, and for what the broker adds."""

_SLICE: Final = 32 * 1024
"""Number of bytes after which other requests get their turn."""

RowT = TypeVar("RowT")
ItemT = TypeVar("ItemT", bound=BaseModel)


@dataclass
class Conditions:
    """Conditions of a statement, and their values, after those it has anyway."""

    first: int
    """The number of the first placeholder that is free."""
    parts: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, template: str, *values: Any) -> None:
        """A condition in which each `{}` stands for a value."""
        places = [f"${self.first + len(self.values) + offset}" for offset in range(len(values))]
        self.parts.append(template.format(*places))
        self.values += values

    def __str__(self) -> str:
        return "".join(f" and {part}" for part in self.parts)


def bounded(page: str, order: str, limit: str, budget: str) -> str:
    """The statement `page`, which has a column `size` and ends with `order`, cut where it gets too large.

    Takes the placeholders of the limit and of the bytes. Each row has `found`, how many rows the page has in all,
    cut off or not, up to one more than the limit.
    """
    return (
        f"with page as ({page} order by {order} limit {limit} + 1), "  # noqa: S608  # statements of ours
        f"weighed as (select *, sum(size) over (order by {order} rows unbounded preceding) as weight, "
        f"count(*) over () as found from page) "
        f"select * from weighed where weight - size <= {budget} order by {order}"
    )


@dataclass
class Cut(Generic[RowT, ItemT]):
    """What fits on a page."""

    rows: list[RowT]
    items: list[ItemT]
    more: bool


async def cut(
    rows: Sequence[RowT], item: Callable[[RowT], ItemT], *, limit: int, budget: int, found: int
) -> Cut[RowT, ItemT]:
    """The first rows, at most `limit`, whose items together are not over `budget` bytes as JSON; but at least one.

    Other requests get their turn meanwhile: a large page takes longer to read than a small one to answer.
    """
    items: list[ItemT] = []
    slice_left = _SLICE
    for made in map(item, rows[:limit]):
        size = len(to_json(made)) + 1
        budget -= size
        if items and budget < 0:
            break
        items.append(made)
        slice_left -= size
        if slice_left < 0:
            slice_left = _SLICE
            await asyncio.sleep(0)
    return Cut(list(rows[: len(items)]), items, found > len(items))


def scope(project: str) -> str | None:
    """The project that an asker is bound to, or None for whoever may see all."""
    return None if project == FLEET else project


def unique(names: Iterable[str]) -> list[str]:
    """Each name once, in order."""
    return list(dict.fromkeys(names))
