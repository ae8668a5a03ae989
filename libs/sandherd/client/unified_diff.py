"""Applies the unified diff of one file to its content. Pure. The diff is from a sandbox, and may contain anything."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

_HUNK: Final = re.compile(r"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_NO_NEWLINE: Final = "\\ No newline"


class DiffMismatchError(ValueError):
    """The diff is not valid, or does not match the content."""


def apply_diff(content: str, diff: str) -> str:
    """The content with the changes of the diff. Raises `DiffMismatchError`."""
    old_lines = _lines(content)
    new_lines: list[str] = []
    position = 0
    for start, hunk in _hunks(_lines(diff)):
        if not position <= start <= len(old_lines):
            raise DiffMismatchError("a hunk begins outside the content, or before the end of the previous hunk")
        new_lines += old_lines[position:start]
        position = start
        position += _apply_hunk(old_lines[start:], hunk, new_lines)
    return "".join(new_lines + old_lines[position:])


def _lines(text: str) -> list[str]:
    """The lines with their ends; only a line feed ends a line."""
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _hunks(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """The index of each hunk's first line in the content, and the hunk's lines: as many as its head states."""
    index = 0
    while index < len(lines):
        head = _HUNK.match(lines[index])
        index += 1
        if head is None:
            continue
        old_count, new_count = (int(head[group] or 1) if head[group] != "0" else 0 for group in (2, 4))
        start = int(head[1]) - (1 if old_count else 0)  # a hunk that only adds lines names the line before them
        body: list[str] = []
        while index < len(lines) and (old_count > 0 or new_count > 0 or lines[index].startswith(_NO_NEWLINE)):
            sign = lines[index][:1]
            old_count -= sign in {" ", "-", "\n"}
            new_count -= sign in {" ", "+", "\n"}
            body.append(lines[index])
            index += 1
        if old_count or new_count:
            raise DiffMismatchError("a hunk does not have the number of lines that its head states")
        yield start, body


def _apply_hunk(old_lines: Sequence[str], hunk: Sequence[str], new_lines: list[str]) -> int:
    """Append the hunk's result to `new_lines`; returns how many lines of the content it replaces."""
    replaced = 0
    for index, line in enumerate(hunk):
        if line.startswith(_NO_NEWLINE):
            continue
        sign, text = line[:1], line[1:]
        if sign == "\n":  # an empty line without its leading space
            sign, text = " ", "\n"
        if index + 1 < len(hunk) and hunk[index + 1].startswith(_NO_NEWLINE):
            text = text.removesuffix("\n")
        if sign == "+":
            new_lines.append(text)
            continue
        if replaced >= len(old_lines) or old_lines[replaced] != text:
            raise DiffMismatchError("the content differs from what the diff expects")
        replaced += 1
        if sign == " ":
            new_lines.append(text)
    return replaced
