"""The tables of `sandherd compare`, `search` and `files --versions`."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.console import Paint
from sandherd.cli.render.table import Column
from sandherd.cli.stderr import print_error
from sandherd.client.terminal_text import visible_line, write_text
from sandherd.contracts.requests import (
    ComparedFile,
    ComparedSandbox,
    ComparedTool,
    ComparedTurn,
    Comparison,
    FileVersion,
    SearchHit,
)

VERSIONS_HEADER: Final = (
    "FILE",
    "VERSION",
    "CHANGE",
    "LINES",
    "TURN",
    Column("TIME", 2),
    Column("SHA-256", 1, cut=True),
)
_TOTALS_HEADER: Final = ("", "FIRST", "SECOND")
SideT = TypeVar("SideT")


def show_comparison(comparison: Comparison, output: Format) -> None:
    """Show two sandboxes side by side."""
    if output.is_json:
        console.print_document(output, comparison)
        return
    wide = output is Format.WIDE
    first, second = _sandbox_facts(comparison.first), _sandbox_facts(comparison.second)
    console.print_table(_TOTALS_HEADER, [[name, first[name], second[name]] for name in first], wide=wide)
    tables: list[tuple[str, list[list[object]]]] = [
        ("TYPE", [[row.type, row.first, row.second] for row in comparison.types]),
        ("TOOL", [_row(row.tool, row.first, row.second, _tool_text) for row in comparison.tools]),
        ("TURN", [_row(row.turn, row.first, row.second, _turn_text) for row in comparison.turns]),
        (
            "FILE",
            [_row(row.file_path, row.first, row.second, _file_text, row.same_content) for row in comparison.files],
        ),
    ]
    for name, rows in tables:
        if rows:
            write_text("")
            header = (name, "FIRST", "SECOND", *(["SAME"] if name == "FILE" else []))
            console.print_table(header, rows, wide=wide)
    if comparison.cut:
        print_error("not all rows are shown, because a reply has a maximum size")


def _sandbox_facts(side: ComparedSandbox) -> dict[str, object]:
    return {
        "sandbox": side.sandbox,
        "task": side.task,
        "state": side.state,
        "seconds": side.seconds,
        "cost": console.money(side.cost_micro_usd),
        "events": side.events,
        "turns": side.turns,
        "tool calls": side.tool_calls,
        "errors": side.errors,
        "input tokens": side.input_tokens,
        "output tokens": side.output_tokens,
        "lines": f"+{side.lines_added} −{side.lines_removed}",
    }


def _row(
    key: object, first: SideT | None, second: SideT | None, text: Callable[[SideT], str], *more: object
) -> list[object]:
    return [key, *(None if side is None else text(side) for side in (first, second)), *more]


def _tool_text(tool: ComparedTool) -> str:
    failed = f", {tool.failed} failed" if tool.failed else ""
    return f"{tool.calls}{failed}, {tool.milliseconds / 1000:.1f} s"


def _turn_text(turn: ComparedTurn) -> str:
    return f"{turn.tool_calls} calls, {turn.seconds:.1f} s, {console.money(turn.cost_micro_usd)}"


def _file_text(file: ComparedFile) -> str:
    return f"{file.change_type} ×{file.changes} +{file.lines_added} −{file.lines_removed}"


def show_hits(hits: Sequence[SearchHit], output: Format) -> None:
    """Show the hits of a search. A hit is a line with time, entity, kind and type, and below it the snippet.

    Matches are bold.
    """
    if output.is_json:
        console.print_list(output, {"hits": hits}, (), [])
        return
    if not hits:
        write_text("none")
    paint = Paint.for_screen()
    for hit in hits:
        time = hit.time.astimezone().isoformat(" ", "seconds")
        write_text(f"{paint(time, 'dim')} {hit.entity} {hit.kind} {hit.type} #{hit.stream_sequence}")
        write_text(f"    {marked(hit, paint)}")


def marked(hit: SearchHit, paint: Paint) -> str:
    """The snippet in one line, with its matches in bold. Pure."""
    parts, end = [], 0
    for match in hit.matches:
        parts += [
            _visible_line(hit.snippet[end : match.start]),
            paint(_visible_line(hit.snippet[match.start : match.end]), "bold"),
        ]
        end = match.end
    return "".join([*parts, _visible_line(hit.snippet[end:])])


def _visible_line(text: str) -> str:
    """The text in one line. White space at its beginning and at its end becomes one space."""
    before, after = " " * text[:1].isspace(), " " * text[-1:].isspace()
    line = visible_line(text)
    return f"{before}{line}{after}" if line else before


def version_row(file_version: FileVersion) -> list[object]:
    """The row of a version of a file. Pure."""
    path = (
        f"{file_version.previous_path} → {file_version.file_path}"
        if file_version.previous_path
        else file_version.file_path
    )
    lines = f"+{file_version.lines_added} −{file_version.lines_removed}"
    return [
        path,
        file_version.number,
        file_version.change_type,
        lines,
        file_version.turn,
        file_version.time,
        file_version.content_sha256,
    ]
