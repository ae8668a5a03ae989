"""What the commands about the past print, as it was or as it comes."""

from datetime import datetime
from typing import Any

from sandherd.client import heard
from sandherd.client.cli import printing
from sandherd.client.cli.auditing import audit_faults
from sandherd.client.cli.choosing import Wanted
from sandherd.client.cli.colours import Paint
from sandherd.client.cli.leaving import complain
from sandherd.client.cli.options import Format
from sandherd.client.cli.picture import draw
from sandherd.client.cli.telling import gap, tell
from sandherd.client.errors import HerdError
from sandherd.client.following import Following
from sandherd.client.herd import Herd
from sandherd.client.sequencing import Event
from sandherd.client.terminal_text import may_put_exactly, put, put_exactly, put_output
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import Audit, Trajectory

NOT_WHOLE = "what is kept comes back with event-ingest: look again with `sandherd events`"


async def stored(herd: Herd, wanted: Wanted, output: Format) -> int:
    """The stored events of a task or sandbox."""
    paint = Paint.for_screen()
    whose: dict[str, Any] = {wanted.kind: wanted.name}
    found = 0
    async for event in herd.events(types=wanted.types, since=wanted.since, **whose):
        found += 1
        show(heard.kept(event), output, paint)
    if not found:
        # Whether there is such a thing at all is another question; its answer names what helps.
        await (herd.task(wanted.name) if wanted.kind == "task" else herd.sandbox(wanted.name))
        complain(f"no such events of {wanted.name}")
    return 0


async def followed(herd: Herd, wanted: Wanted, output: Format) -> int:
    """The events of a task or sandbox to its end."""
    paint = Paint.for_screen()
    whose: dict[str, Any] = {wanted.kind: wanted.name}
    async with herd.follow(**whose) as following:
        async for event in following:
            if wanted.fits(event):
                show(event, output, paint)
    complain_of_gaps(following)
    return 0


def show(event: Event, output: Format, paint: Paint) -> None:
    """One event."""
    if output is Format.JSON:
        printing.line(event)
        return
    for text in tell(event, paint):
        put(text, flush=True)


def complain_of_gaps(following: Following) -> None:
    """Say what of a story could not be shown."""
    for missing in following.missing:
        complain(f"not whole: {gap(missing)}; {NOT_WHOLE}")


async def trajectory(herd: Herd, sandbox: str, output: Format) -> int:
    """The picture of a run."""
    pages = [in_time(page) async for page in herd.trajectory(sandbox)]
    if not pages[-1].total_events:
        await herd.sandbox(sandbox)
    if output is Format.JSON:
        printing.document(_joined(pages))
        return 0
    for text in draw(pages, Paint.for_screen()):
        put(text)
    return 0


def in_time(page: Trajectory) -> Trajectory:
    """A page with its events in the order of their times, as far as these tell; then in that of the stream."""
    ordered = sorted(
        page.events, key=lambda stored: (datetime.fromisoformat(stored.envelope["time"]), stored.stream_sequence)
    )
    return page.model_copy(update={"events": ordered})


def _joined(pages: list[Trajectory]) -> Trajectory:
    """All pages as one."""
    events = [event for page in pages for event in page.events]
    return pages[-1].model_copy(update={"events": events, "next_cursor": None, "prev_cursor": None, "has_more": False})


async def terminal(herd: Herd, sandbox: str, output: Format, *, follow: bool, raw: bool) -> int:
    """What a terminal showed."""
    if raw and not may_put_exactly():
        raise HerdError.of(
            Code.INVALID_FIELD,
            "--raw gives control characters as they are, and would give them to this terminal",
            field="raw",
            remedy="send its output to a file or a pipe, as in `| less -R`, or leave --raw out",
        )
    colours = Paint.for_screen().on
    shown = 0
    async for chunk in herd.output(sandbox, follow=follow):
        shown += 1
        if output is Format.JSON:
            printing.line(chunk)
        elif raw:
            put_exactly(chunk.text.encode("utf-8", "replace"))
        else:
            put_output(chunk.text, colours=colours)
    if not shown:
        await herd.sandbox(sandbox)
        complain(f"{sandbox} has shown nothing, or more than 6 hours ago; see `sandherd trajectory {sandbox}`")
    return 0


async def audit(herd: Herd, sandbox: str | None, output: Format) -> int:
    """Whether all is kept; 1 if not."""
    found = await herd.audit(sandbox)
    if sandbox is not None and not found.sources:
        await herd.sandbox(sandbox)
    if output is Format.JSON:
        printing.document(found)
    else:
        _print_audit(found)
    faults = audit_faults(found)
    for fault in faults:
        complain(fault)
    return 1 if faults else 0


def _print_audit(found: Audit) -> None:
    if found.sources:
        header = ("SOURCE", "STORED", "HIGHEST", "MISSING", "GAPS", "CONFLICTS", "CLOSED")
        printing.table(
            header,
            [
                [one.source, one.stored, one.highest, one.missing, _gaps(one.gaps), one.conflicts, one.closed]
                for one in found.sources
            ],
        )
        put()
    printing.facts(
        {
            "sources": found.source_count,
            "events": found.event_count,
            "missing": found.missing,
            "conflicts": found.conflicts,
            "implausible": found.implausible,
            "unsaid": found.unsaid,
            "duplicates refused": found.duplicates_refused,
            "unstored": found.unstored,
            "dead letters": found.dead,
        }
    )


def _gaps(gaps: list[Any]) -> str:
    return ", ".join(f"{gap.first}–{gap.last}" if gap.last > gap.first else str(gap.first) for gap in gaps) or "-"
