"""Pages of results, with a limit of rows and of bytes, so that no row is repeated or missing; and checks of filters."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET

RESERVED_REPLY_BYTES: Final = 16 * 1024
"""Bytes of a reply that are reserved for its other fields, and for what the broker adds."""

_YIELD_SECONDS: Final = 0.005
"""After this time, other requests may run. Bytes are not a measure for that: a small item may need a large event."""

RowT = TypeVar("RowT")
ItemT = TypeVar("ItemT", bound=BaseModel)


@dataclass
class Conditions:
    """Conditions to be appended to a statement, with their values. Their placeholders follow those of the statement."""

    first: int
    """The number of the first free placeholder."""
    parts: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, template: str, *values: Any) -> None:
        """Add a condition, in which each `{}` stands for a value."""
        placeholders = [f"${self.first + len(self.values) + offset}" for offset in range(len(values))]
        self.parts.append(template.format(*placeholders))
        self.values += values

    def __str__(self) -> str:
        return "".join(f" and {part}" for part in self.parts)


def limited(page: str, order: str, limit: str, budget: str) -> str:
    """The statement `page`, which has a column `size` and is ordered by `order`, cut where it exceeds the byte limit.

    `limit` and `budget` are the placeholders of the row limit and of the byte limit. Each row has `available`:
    the number of rows up to the row limit and one more, including those that exceed the byte limit.
    """
    return (
        f"with page as ({page} order by {order} limit {limit} + 1), "  # noqa: S608  # constant statements
        f"weighed as (select *, sum(size) over (order by {order} rows unbounded preceding) as weight, "
        f"count(*) over () as available from page) "
        f"select * from weighed where weight - size <= {budget} order by {order}"
    )


@dataclass
class FittedPage(Generic[RowT, ItemT]):
    """The rows and items that fit on a page."""

    rows: list[RowT]
    items: list[ItemT]
    more: bool


async def fit_page(
    rows: Sequence[RowT], item: Callable[[RowT], ItemT], *, limit: int, budget: int, available: int
) -> FittedPage[RowT, ItemT]:
    """The first rows, at most `limit`, whose items together do not exceed `budget` bytes as JSON; but at least one.

    Yields to other requests in between, as building a large page takes longer than answering a small request.
    """
    items: list[ItemT] = []
    began = monotonic()
    for built in map(item, rows[:limit]):
        size = len(to_json(built)) + 1
        budget -= size
        if items and budget < 0:
            break
        items.append(built)
        if monotonic() - began >= _YIELD_SECONDS:
            await asyncio.sleep(0)
            began = monotonic()
    return FittedPage(list(rows[: len(items)]), items, available > len(items))


def project_filter(project: str) -> str | None:
    """The project that a requester is restricted to, or None for one that may see all."""
    return None if project == FLEET else project


def check_searched(text: str | None, field: str) -> None:
    """Raise `ContractError` for a text with a NUL character: Postgres can't store it, so it can't be searched for."""
    if text is not None and "\0" in text:
        raise ContractError(Code.INVALID_FIELD, f"{field}: contains a NUL character", field=field)
