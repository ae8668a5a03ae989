"""Compares two sandboxes, by rows that the database has added up for each of them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_core import to_json

from sandherd.contracts.requests.comparison import (
    MAX_COMPARED,
    ComparedFile,
    ComparedSandbox,
    ComparedTool,
    ComparedTurn,
    Comparison,
    FileRow,
    ToolRow,
    TurnRow,
    TypeRow,
)

KeyT = TypeVar("KeyT", int, str)
ValueT = TypeVar("ValueT")


@dataclass
class ComparedSide:
    """The numbers of one of the two compared sandboxes."""

    sandbox: ComparedSandbox
    types: dict[str, int] = field(default_factory=dict)
    turns: dict[int, ComparedTurn] = field(default_factory=dict)
    tools: dict[str, ComparedTool] = field(default_factory=dict)
    files: dict[str, ComparedFile] = field(default_factory=dict)


def add_rows(side: ComparedSide, rows: Iterable[Mapping[str, Any]]) -> ComparedSide:
    """Add the rows of turns, tools and files to a side. Returns the side."""
    for row in rows:
        if row["kind"] == "turn":
            side.turns[int(row["key"])] = _turn(row)
        elif row["kind"] == "tool":
            side.tools[row["key"]] = ComparedTool(
                calls=row["calls"], failed=row["errors"], milliseconds=round(row["seconds"] * 1000, 3)
            )
        else:
            side.files[row["key"]] = _file(row)
    return side


def _turn(row: Mapping[str, Any]) -> ComparedTurn:
    return ComparedTurn(
        seconds=row["seconds"],
        tool_calls=row["calls"],
        errors=row["errors"],
        input_tokens=row["first_amount"],
        output_tokens=row["second_amount"],
        cost_micro_usd=row["cost_micro_usd"],
    )


def _file(row: Mapping[str, Any]) -> ComparedFile:
    return ComparedFile(
        changes=row["calls"],
        lines_added=row["first_amount"],
        lines_removed=row["second_amount"],
        change_type=row["change_type"],
        content_sha256=row["content_sha256"],
    )


def compare(first: ComparedSide, second: ComparedSide, max_bytes: int) -> Comparison:
    """The comparison, with rows ordered by number or name.

    Rows are left out until the comparison has at most `max_bytes` bytes as JSON, but one row of each kind stays.
    """
    types = [TypeRow(type=key, first=a or 0, second=b or 0) for key, a, b in _pairs(first.types, second.types)]
    turns = [TurnRow(turn=key, first=a, second=b) for key, a, b in _pairs(first.turns, second.turns)]
    tools = [ToolRow(tool=key, first=a, second=b) for key, a, b in _pairs(first.tools, second.tools)]
    files = [_file_row(key, a, b) for key, a, b in _pairs(first.files, second.files)]
    limit = MAX_COMPARED
    while True:
        comparison = Comparison(
            first=first.sandbox,
            second=second.sandbox,
            types=types[:limit],
            turns=turns[:limit],
            tools=tools[:limit],
            files=files[:limit],
            cut=any(len(rows) > limit for rows in (types, turns, tools, files)),
        )
        if limit == 1 or len(to_json(comparison)) <= max_bytes:
            return comparison
        limit //= 2


def _pairs(first: Mapping[KeyT, ValueT], second: Mapping[KeyT, ValueT]) -> list[tuple[KeyT, Any, Any]]:
    """Each key, with its value in the first and in the second mapping, ordered by key. A missing value is None."""
    return [(key, first.get(key), second.get(key)) for key in sorted(first.keys() | second.keys())]


def _file_row(path: str, first: ComparedFile | None, second: ComparedFile | None) -> FileRow:
    has_same_content = None
    if first is not None and second is not None:
        deleted = [file.change_type == "deleted" for file in (first, second)]
        digests = [file.content_sha256 for file in (first, second)]
        if any(deleted):
            has_same_content = all(deleted)
        elif None not in digests:
            has_same_content = digests[0] == digests[1]
    return FileRow(file_path=path, first=first, second=second, same_content=has_same_content)
