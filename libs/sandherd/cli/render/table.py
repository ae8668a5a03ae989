"""Formats a table to fit a terminal: columns are omitted, cut or wrapped at spaces. Names are never broken."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

GAP: Final = 2
"""Spaces between columns."""
MAX_CELL_WIDTH: Final = 60
"""Maximum width of a column with `cut` on a terminal."""
MIN_CELL_WIDTH: Final = 12
"""Minimum width of a column with long words. Names and times are never broken, so they may need more."""

_EMPTY: Final = frozenset({"", "-"})
"""Cells without a value."""
_WORD: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*|\S+")
"""Matches a word. A date and its time are one word."""
_UNBROKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_:+. -]{0,63}[…,;:]?")
"""Matches words that are never broken: names, states and times."""


@dataclass(frozen=True)
class Column:
    """A column. If a terminal is too narrow, the column with the highest `rank` is omitted first; rank 0 never is.

    On a terminal, cells of a column with `cut` are one line of at most `MAX_CELL_WIDTH` characters. Cells of a column
    with `whole` are one line. Cells of other columns are wrapped.
    """

    title: str
    rank: int = 0
    cut: bool = False
    whole: bool = False
    below: bool = False
    """Whether its cells are shown below their rows, after the title, if a terminal is too narrow for the table."""
    spills: bool = False
    """Whether a cell that is wider than the column is shown below its row. Without a terminal the column is at most
    `MAX_CELL_WIDTH` wide, and the cells after a wider cell are not aligned."""


def lines(
    header: Sequence[str | Column], rows: Sequence[Sequence[str]], width: int | None, *, wide: bool = False
) -> Iterator[str]:
    """The lines of a table, the header first. Without a `width`, or with `wide`, cells are shown in full.

    If the table is wider than `width`, columns without any value are omitted first.
    """
    columns = [Column(title) if isinstance(title, str) else title for title in header]
    limited = width is not None and not wide
    widths = _widths(columns, rows, wide=not limited)
    below: list[int] = []
    if width is not None and limited:
        if _total_width(widths) > width:
            columns, rows = _columns_with_values(columns, rows)
            widths = _widths(columns, rows, wide=False)
        below = _columns_below(columns, widths, width)
        minima = [
            max(_minimum_width([row[at] for row in rows], column), len(column.title))
            for at, column in enumerate(columns)
        ]
        widths = _fitted_widths(columns, minima, widths, width, below)
    yield from _row_lines(columns, [column.title for column in columns], widths)
    for row in rows:
        spilled = _spilled_columns(columns, row, widths) if limited else []
        yield from _row_lines(columns, ["" if at in spilled else text for at, text in enumerate(row)], widths)
        for at in sorted([*below, *spilled]):
            yield from _cell_below(columns[at].title, row[at], width or 0)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, wide: bool) -> list[int]:
    """The width of each column that its cells and title need, without the limit of a terminal."""
    return [
        _full_width([column.title, *(row[at] for row in rows)], column, wide=wide) for at, column in enumerate(columns)
    ]


def _columns_with_values(
    columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[list[Column], Sequence[Sequence[str]]]:
    """The first column and the columns with a value in any row, and their cells."""
    shown_columns = [at for at in range(len(columns)) if not at or any(row[at] not in _EMPTY for row in rows)]
    return [columns[at] for at in shown_columns], [[row[at] for at in shown_columns] for row in rows]


def _spilled_columns(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> list[int]:
    """The indexes of the columns whose cell in this row is too wide, and is shown below the row."""
    return [at for at, column in enumerate(columns) if column.spills and cell_width(row[at]) > widths[at]]


def _columns_below(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """The indexes of the columns whose cells are shown below their rows; empty if the table fits."""
    needed = [natural[at] for at, column in enumerate(columns) if column.below or not column.rank]
    return [at for at, column in enumerate(columns) if column.below] if _total_width(needed) > width else []


def _cell_below(title: str, text: str, width: int) -> Iterator[str]:
    if text not in _EMPTY:
        name = f"{title.lower()}: "
        for number, part in enumerate(wrapped_whole(text, width - GAP - len(name))):
            yield " " * GAP + (name if number == 0 else " " * len(name)) + part


def cell_width(text: str) -> int:
    """The number of columns of a terminal that a text takes."""
    return len(text) if text.isascii() else sum(map(_letter_width, text))


def _letter_width(letter: str) -> int:
    if unicodedata.category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _full_width(cells: Sequence[str], column: Column, *, wide: bool) -> int:
    longest = max(map(cell_width, cells))
    if column.spills and wide:
        return min(longest, MAX_CELL_WIDTH)
    return min(longest, max(MAX_CELL_WIDTH, len(column.title))) if column.cut and not wide else longest


def _minimum_width(cells: Sequence[str], column: Column) -> int:
    if column.whole or column.below:
        return max(map(cell_width, cells), default=0)
    if column.spills:
        return MIN_CELL_WIDTH
    return max((_minimum_word_width(word) for cell in cells for word in _WORD.findall(cell)), default=0)


def _minimum_word_width(word: str) -> int:
    return cell_width(word) if _UNBROKEN.fullmatch(word) else min(cell_width(word), MIN_CELL_WIDTH)


def _fitted_widths(
    columns: Sequence[Column], minima: Sequence[int], natural: Sequence[int], width: int, below: Sequence[int]
) -> list[int]:
    """The width of each column, 0 for an omitted column. Their sum exceeds `width` if columns of rank 0 need more."""
    minima = [
        min(long, max(MIN_CELL_WIDTH, len(column.title))) if column.cut else min(short, long)
        for column, short, long in zip(columns, minima, natural, strict=True)
    ]
    shown = set(range(len(columns))) - set(below)
    while _total_width([minima[at] for at in shown]) > width and any(columns[at].rank for at in shown):
        shown.remove(max(shown, key=lambda at: columns[at].rank))
    widths = [minima[at] if at in shown else 0 for at in range(len(columns))]
    remaining = width - _total_width([widths[at] for at in shown])
    growing = sorted(shown, key=lambda at: natural[at] - widths[at])
    for count, at in enumerate(growing):
        growth = min(natural[at] - widths[at], max(0, remaining) // (len(growing) - count))
        widths[at] += growth
        remaining -= growth
    return widths


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * max(0, len(widths) - 1)


def _row_lines(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cell_lines = [
        [_cut(text, width)] if column.cut else [text] if column.spills else _wrapped(text, width)
        for column, text, width in zip(columns, row, widths, strict=True)
        if width
    ]
    shown_widths = [width for width in widths if width]
    for number in range(max(map(len, cell_lines), default=0)):
        texts = [column[number] if number < len(column) else "" for column in cell_lines]
        padded = (text + " " * (width - cell_width(text)) for text, width in zip(texts, shown_widths, strict=True))
        yield (" " * GAP).join(padded).rstrip()


def _cut(text: str, width: int) -> str:
    return text if cell_width(text) <= width else f"{_beginning(text, width - 1)}…"


def _beginning(text: str, width: int) -> str:
    """The beginning of a text that fits `width`, but at least one letter."""
    width_so_far = 0
    for at, letter in enumerate(text):
        width_so_far += _letter_width(letter)
        if width_so_far > width:
            return text[: max(1, at)]
    return text


def wrapped_whole(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`. No word is broken, so a longer word has a longer line."""
    return _wrapped(text, width, breaks=False)


def _wrapped(text: str, width: int, *, breaks: bool = True) -> list[str]:
    """The text in lines of at most `width`, except for longer names. With `breaks`, other longer words are broken."""
    if cell_width(text) <= width:
        return [text]
    wrapped = [""]
    for word in _WORD.findall(text):
        rest = word
        if wrapped[-1] and cell_width(wrapped[-1]) + 1 + cell_width(rest) <= width:
            wrapped[-1] += f" {rest}"
            continue
        while breaks and cell_width(rest) > width and not _UNBROKEN.fullmatch(rest):
            wrapped.append(_beginning(rest, width))
            rest = rest[len(wrapped[-1]) :]
        wrapped.append(rest)
    return [line for line in wrapped if line]
