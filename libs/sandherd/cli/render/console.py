"""Prints results as tables, facts or JSON, to a terminal or a pipe."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel

from sandherd.cli.options import Format
from sandherd.cli.render.table import GAP, Column, lines, wrapped_whole
from sandherd.client.terminal_text import visible, write_json, write_text

UNMETERED: Final = "unmetered"
"""Shown in place of an amount if no agent has reported its use."""
_MICRO_USD_SUFFIX: Final = "_micro_usd"


def plain(value: Any) -> Any:
    """A value as plain JSON types."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):  # in the same form as the times in models
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value


def print_document(output: Format, value: Any) -> None:
    """Print one JSON document; with `jsonl` in one line."""
    if output is Format.JSONL:
        print_line(value)
    else:
        write_json(json.dumps(plain(value), indent=2, ensure_ascii=False, default=str))


def print_line(value: Any) -> None:
    """Print one JSON document in one line, and flush, so that a reader of the stream gets it at once."""
    write_json(json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), default=str), flush=True)


def print_table(header: Sequence[str | Column], rows: Sequence[Sequence[object]], *, wide: bool = False) -> None:
    """Print a table, or `none` if there are no rows. It is at most as wide as the terminal unless `wide` is set."""
    if not rows:
        write_text("none")
        return
    title, *row_lines = table_lines(header, rows, wide=wide)
    write_text(Paint.for_screen()(title, "bold"))
    for text in row_lines:
        write_text(text)


def table_lines(header: Sequence[str | Column], rows: Sequence[Sequence[object]], *, wide: bool = False) -> list[str]:
    """The lines of a table, as `print_table` prints them."""
    return list(lines(header, [[cell(value) for value in row] for row in rows], _terminal_width(), wide=wide))


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_facts(pairs: Mapping[str, object], *, width: int = 0) -> None:
    """Print names and values, one pair per line. None and empty values are omitted. On a terminal, lines are wrapped.

    The column of names has at least `width` characters.
    """
    texts = {name: cell(value) for name, value in _with_money(pairs).items() if not _is_empty(value)}
    width, terminal = max(width, *(len(name) for name in texts)) if texts else width, _terminal_width()
    for name, value in texts.items():
        parts = [value] if terminal is None else wrapped_whole(value, terminal - width - GAP)
        for number, part in enumerate(parts):
            write_text(f"{'' if number else name:<{width}}  {part}")


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | tuple | dict | set | frozenset) and not value)


def cell(value: object) -> str:
    """A value as text for a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone().isoformat(" ", "seconds")
    if isinstance(value, float):
        return f"{value:.1f}"
    text = json.dumps(_with_money(plain(value)), ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return visible(text).replace("\n", " ").replace("\t", " ")


def money(micro_dollars: int) -> str:
    """An amount in US dollars, to a hundredth of a cent."""
    return f"${micro_dollars / 1_000_000:,.4f}"


def _with_money(value: Any) -> Any:
    """The value, with amounts in US dollars in place of its fields `…_micro_usd`, whose names lose this suffix."""
    if isinstance(value, list):
        return [_with_money(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    converted: dict[str, Any] = {}
    for name, item in value.items():
        if name.endswith(_MICRO_USD_SUFFIX) and isinstance(item, int):
            converted[name.removesuffix(_MICRO_USD_SUFFIX)] = money(item)
        else:
            converted[name] = _with_money(item)
    return converted


def print_list(
    output: Format,
    value: Any,
    header: Sequence[str | Column],
    rows: Sequence[Sequence[object]],
    *,
    name: Callable[[Sequence[object]], str] = lambda row: cell(row[0]),
) -> None:
    """Print a list in the requested format. `value` is the JSON document. `name` returns the name for a row."""
    if output is Format.JSONL:
        for item in _list_items(plain(value)):
            print_line(item)
    elif output is Format.JSON:
        print_document(output, value)
    elif output is Format.NAME:
        for row in rows:
            write_text(name(row))
    else:
        print_table(header, rows, wide=output is Format.WIDE)


def _list_items(value: Any) -> list[Any]:
    """The items of a list, or of the only list in a document. Any other value is itself the only item."""
    if isinstance(value, list):
        return value
    lists = [item for item in value.values() if isinstance(item, list)] if isinstance(value, dict) else []
    return lists[0] if len(lists) == 1 else [value]


_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


class Paint:
    """Colours text if it is on; else returns it unchanged."""

    def __init__(self, *, on: bool) -> None:
        self.on = on

    @classmethod
    def for_screen(cls) -> "Paint":
        """Paint for standard output: it is on if that is a terminal and NO_COLOR is not set."""
        return cls(on=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))

    def __call__(self, text: str, colour: str | None) -> str:
        """The text in a colour."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.on and colour else text
