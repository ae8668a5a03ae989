"""Shows stored and live events, timelines, terminal output and audits."""

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from sandherd.cli.name_prefixes import full_name, kind_of
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.console import Paint
from sandherd.cli.render.event_line import format_event, gap
from sandherd.cli.stderr import print_error
from sandherd.client.doctor.audit import audit_faults
from sandherd.client.errors import HerdError
from sandherd.client.events import decoder
from sandherd.client.events.sequencer import Event
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import may_write_exactly, write_exactly, write_output, write_text
from sandherd.contracts.errors import Code

if TYPE_CHECKING:
    from sandherd.cli.parse.event_filter import EventFilter
    from sandherd.client.events.follower import EventFollower
    from sandherd.contracts.requests import Audit, Trajectory

_INCOMPLETE_REMEDY = "stored events are available when event-ingest is back: see `sandherd events`"


async def show_events(herd: Herd, event_filter: "EventFilter", output: Format) -> int:
    """Show the stored events of a task or sandbox."""
    paint = Paint.for_screen()
    entity: dict[str, Any] = {event_filter.kind: event_filter.name}
    event_count = 0
    async for event in herd.events(types=event_filter.types, since=event_filter.since, **entity):
        event_count += 1
        show(decoder.from_history(event), output, paint)
    if not event_count:
        print_error(f"{event_filter.name} has no such events")
    return 0


async def follow_events(herd: Herd, event_filter: "EventFilter", output: Format) -> int:
    """Show the events of a task or sandbox until its end."""
    from sandherd.cli.render.timed_display import TimedDisplay

    paint = Paint.for_screen()
    entity: dict[str, Any] = {event_filter.kind: event_filter.name}
    with TimedDisplay() as display:

        def receive(event: Event) -> None:
            if event_filter.matches(event):
                display.add(partial(show, event, output, paint), source=event.source, time=event.time)

        async with herd.follow(**entity) as follower:
            await display.follow(follower, receive)
    report_gaps(follower)
    return 0


def show(event: Event, output: Format, paint: Paint) -> None:
    """Show one event."""
    if output.is_json:
        console.print_line(event)
        return
    for text in format_event(event, paint):
        write_text(text, flush=True)


def report_gaps(follower: "EventFollower") -> None:
    """Print a line for each range of events that are missing."""
    for missing in follower.missing:
        print_error(f"incomplete: {gap(missing)}; {_INCOMPLETE_REMEDY}")


async def trajectory(herd: Herd, sandbox: str, output: Format) -> int:
    """Show the timeline of a sandbox."""
    from sandherd.cli.render.timeline import render_timeline

    pages = [sorted_by_time(page) async for page in herd.trajectory(sandbox)]
    if not pages[-1].total_events:
        await herd.sandbox(sandbox)  # raises HerdError if the sandbox is unknown
    if output.is_json:
        console.print_document(output, _joined(pages))
        return 0
    for text in render_timeline(pages, Paint.for_screen()):
        write_text(text)
    return 0


def sorted_by_time(page: "Trajectory") -> "Trajectory":
    """A page with its events sorted by time, then by stream sequence."""
    ordered = sorted(
        page.events, key=lambda stored: (datetime.fromisoformat(stored.envelope["time"]), stored.stream_sequence)
    )
    return page.model_copy(update={"events": ordered})


def _joined(pages: "list[Trajectory]") -> "Trajectory":
    """All pages joined into one."""
    events = [event for page in pages for event in page.events]
    return pages[-1].model_copy(update={"events": events, "next_cursor": None, "prev_cursor": None, "has_more": False})


async def show_output(herd: Herd, sandbox: str, output: Format, *, follow: bool, raw: bool) -> int:
    """Show the output of a sandbox's terminal."""
    if raw and not may_write_exactly():
        raise HerdError.of(
            Code.INVALID_FIELD,
            "--raw does not filter control characters, and would send them to this terminal",
            field="raw",
            remedy="redirect the output to a file or a pipe, as in `| less -R`, or omit --raw",
        )
    colours = Paint.for_screen().on
    chunk_count = 0
    async for chunk in herd.output(sandbox, follow=follow):
        chunk_count += 1
        if output.is_json:
            console.print_line(chunk)
        elif raw:
            write_exactly(chunk.text.encode("utf-8", "replace"))
        else:
            write_output(chunk.text, colours=colours)
    if not chunk_count:
        await herd.sandbox(sandbox)  # raises HerdError if the sandbox is unknown
        print_error(f"{sandbox} has no output of the last 6 hours; see `sandherd trajectory {sandbox}`")
    return 0


async def audit(herd: Herd, name: str | None, output: Format) -> int:
    """Show whether all events of a sandbox, of a task's sandboxes, or without a name of the project, are stored.

    Returns 0 if they are, else 1.
    """
    name = None if name is None else await full_name(herd, name)
    result = await herd.audit(name)
    if name is not None and not result.sources:
        # raises HerdError if the name is unknown
        await (herd.sandbox(name) if kind_of(name) == "sandbox" else herd.task(name))
    if output.is_json:
        console.print_document(output, result)
    elif output is Format.NAME:
        for source in result.sources:
            write_text(source.source)
    else:
        _print_audit(result)
    faults = audit_faults(result)
    for fault in faults:
        print_error(fault)
    return 1 if faults else 0


def _print_audit(result: "Audit") -> None:
    if result.sources:
        header = ("SOURCE", "STORED", "HIGHEST", "MISSING", "GAPS", "CONFLICTS", "CLOSED")
        console.print_table(
            header,
            [
                [
                    source.source,
                    source.stored,
                    source.highest,
                    source.missing,
                    _gaps(source.gaps),
                    source.conflicts,
                    source.closed,
                ]
                for source in result.sources
            ],
        )
        write_text()
    console.print_facts(
        {
            "sources": result.source_count,
            "events": result.event_count,
            "missing": result.missing,
            "conflicts": result.conflicts,
            "implausible": result.implausible,
            "without last event": result.unsaid,
            "duplicates refused": result.duplicates_refused,
            "unstored": result.unstored,
            "dead letters": result.dead,
        }
    )


def _gaps(gaps: list[Any]) -> str:
    return ", ".join(f"{gap.first}–{gap.last}" if gap.last > gap.first else str(gap.first) for gap in gaps) or "-"
