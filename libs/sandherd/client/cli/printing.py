"""Putting answers on the screen, or into a pipe."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel

from sandherd.client.cli.options import Format
from sandherd.client.terminal_text import put, put_json, visible

WIDEST: Final = 300
"""Columns of a table that goes into a pipe."""


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def document(value: Any) -> None:
    """One JSON document."""
    put_json(json.dumps(plain(value), indent=2, ensure_ascii=False, default=str))


def line(value: Any) -> None:
    """One JSON document in one line, at once: whoever reads a stream waits for it."""
    put_json(json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), default=str), flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows in columns; an empty answer is said in words."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        put("none")
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDEST)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        shown.add_column(title, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell(value)) for value in row))
    with console.capture() as captured:
        console.print(shown)
    put(captured.get(), end="")


def facts(pairs: Mapping[str, object]) -> None:
    """Names and values, one below the other; what is not known is left out."""
    known = {name: cell(value) for name, value in pairs.items() if value is not None and value != ""}
    width = max((len(name) for name in known), default=0)
    for name, value in known.items():
        put(f"{name:<{width}}  {value}")


def cell(value: object) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:.1f}"
    text = json.dumps(plain(value), ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return visible(text).replace("\n", " ").replace("\t", " ")


def answer(output: Format, value: Any, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """An answer in the wanted format."""
    if output is Format.JSON:
        document(value)
    else:
        table(header, rows)
