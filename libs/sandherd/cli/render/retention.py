"""The retention of the history as tables."""

from collections.abc import Sequence
from typing import Final

from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.sizes import binary_size
from sandherd.cli.stderr import complain
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import HistoryDay, HistoryHold, HistoryStatus

DAYS: Final = ("DAY", "EVENTS", "SIZE", "DROPPED", "HELD")
HOLDS: Final = ("PROJECT", "TASK", "SINCE", "BY", "REASON")


def show_status(found: HistoryStatus, output: Format) -> None:
    """The document; or what applies to all days, the days, and the holds."""
    if output not in {Format.TABLE, Format.WIDE}:
        console.answer(output, found, DAYS, ())
        return
    console.facts(
        {
            "events stay": "forever" if not found.days else f"{found.days} days",
            "of projects": ", ".join(f"{one.project} {one.days or 'forever'}" for one in found.project_days),
            "size": binary_size(found.bytes),
            "next drop": found.next_drop_at or "never",
            "no drop before": found.not_before,
            "days ahead": found.days_ahead,
        }
    )
    console.table(DAYS, [_day(one) for one in found.partitions], wide=output is Format.WIDE)
    if found.holds:
        console.table(HOLDS, [_hold(one) for one in found.holds], wide=output is Format.WIDE)


def show_hold(found: HistoryHold, output: Format) -> None:
    """The hold that is in effect now."""
    console.answer(output, found, HOLDS, [_hold(found)])


def show_release(project: str, task: str | None, *, released: bool, output: Format) -> int:
    """Whether there was a hold; returns the exit status."""
    subject = f"task {task} of project {project}" if task else f"project {project}"
    if output in {Format.JSON, Format.JSONL}:
        console.answer(output, {"project": project, "task": task, "released": released}, (), ())
    elif released:
        write_text(f"{subject} is not held any more")
    else:
        complain(f"there is no hold of {subject}")
    return 0 if released else 1


def _day(one: HistoryDay) -> Sequence[object]:
    return (one.day or "none", one.events, binary_size(one.bytes), one.due_at, "yes" if one.held else None)


def _hold(one: HistoryHold) -> Sequence[object]:
    return (one.project, one.task, one.held_at, one.held_by, one.reason)
