"""Pages of results, limited in rows and in bytes, in which no row is repeated or missing; and checks of filters."""

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

_YIELD_SECONDS: Final = 0.001
"""After this time of building a page, other requests run. It is not a number of bytes, because building a small item
may need a large event."""

RowT = TypeVar("RowT")
ItemT = TypeVar("ItemT")


@dataclass
class Conditions:
    """Conditions to be appended to a statement, with their values. Their placeholders follow those of the statement."""

    first: int
    """The number of the first free placeholder."""
    parts: list[str] = field(default_factory=list)  # the conditions, with placeholders
    values: list[Any] = field(default_factory=list)

    def add(self, template: str, *values: Any) -> None:
        """Add a condition, in which each `{}` stands for a value."""
        placeholders = [f"${self.first + len(self.values) + offset}" for offset in range(len(values))]
        self.parts.append(template.format(*placeholders))
        self.values += values

    def __str__(self) -> str:
        return "".join(f" and {part}" for part in self.parts)


def limited_statement(page: str, order: str, limit: str, max_bytes: str) -> str:
    """The statement `page`, ordered by `order`, without the rows after the first one that exceeds the byte limit.

    Its column `size` is the approximate size of a row's item in bytes.

    `limit` and `max_bytes` are the placeholders of the row limit and of the byte limit. The statement reads one row
    more than the row limit. Each row has `available`: the number of rows read, also of those over the byte limit.
    """
    return (
        f"with page as ({page} order by {order} limit {limit} + 1), "  # noqa: S608  # constant statements
        f"added as (select *, (sum(size) over (order by {order} rows unbounded preceding))::bigint as total_size, "
        f"count(*) over () as available from page) "
        f"select * from added where total_size - size <= {max_bytes} order by {order}"
    )


@dataclass
class FittedPage(Generic[RowT, ItemT]):
    """The rows and items that fit on a page."""

    rows: list[RowT]
    items: list[ItemT]
    has_more: bool
    """Whether there are rows that did not fit."""


def json_size(item: BaseModel) -> int:
    """The bytes of an item as JSON."""
    return len(to_json(item))


async def fit_page(
    rows: Sequence[RowT],
    build_item: Callable[[RowT], ItemT],
    *,
    limit: int,
    max_bytes: int,
    available: int,
    size_of: Callable[[Any], int] = json_size,
) -> FittedPage[RowT, ItemT]:
    """The first rows, at most `limit`, whose items together do not exceed `max_bytes` bytes as JSON; but at least one.

    `size_of` returns the bytes of an item as JSON.

    Yields to other requests in between, as building a large page takes longer than replying to a small request.
    """
    items: list[ItemT] = []
    remaining_bytes = max_bytes
    began = monotonic()
    for item in map(build_item, rows[:limit]):
        remaining_bytes -= size_of(item) + 1
        if items and remaining_bytes < 0:
            break
        items.append(item)
        if monotonic() - began >= _YIELD_SECONDS:
            await asyncio.sleep(0)
            began = monotonic()
    return FittedPage(list(rows[: len(items)]), items, available > len(items))


def project_filter(project: str) -> str | None:
    """The project to which a request is restricted, or None for a request about all projects."""
    return None if project == FLEET else project


def check_searchable(text: str | None, field: str) -> None:
    """Raise `ContractError` for a text with a NUL character: Postgres can't store it, so it can't be searched for."""
    if text is not None and "\0" in text:
        raise ContractError(Code.INVALID_FIELD, f"{field}: contains a NUL character", field=field)
