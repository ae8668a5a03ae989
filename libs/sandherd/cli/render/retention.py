"""Shows the retention, the archive, the restored days and the holds of the history."""

from collections.abc import Sequence
from typing import Final

from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.sizes import binary_size
from sandherd.cli.stderr import print_error
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import (
    ArchivedEvents,
    ArtifactStoreStatus,
    HistoryDay,
    HistoryHold,
    HistoryRestore,
    HistoryStatus,
)

DAYS: Final = ("DAY", "EVENTS", "SIZE", "DROPPED", "HELD", "REMOVED", "REDUCED")
ARCHIVES: Final = ("DAY", "PROJECT", "EVENTS", "SIZE", "FILES", "ARCHIVED")
PROBLEMS: Final = ("DAY", "SINCE", "NOT ARCHIVED")
RESTORES: Final = ("DAY", "PROJECT", "EVENTS", "RESTORED", "STAYS UNTIL", "BY", "PROBLEM")
HOLDS: Final = ("PROJECT", "TASK", "SINCE", "BY", "REASON")


def show_status(found: HistoryStatus, output: Format) -> None:
    """Show the retention, and tables of the days, the holds, the problems of the archive and the restores."""
    if output not in {Format.TABLE, Format.WIDE}:
        console.answer(output, found, DAYS, ())
        return
    console.facts(
        {
            "events stay": "forever" if not found.days else f"{found.days} days",
            "of projects": ", ".join(f"{one.project} {one.days or 'forever'}" for one in found.project_days),
            "of types": ", ".join(f"{one.type} {one.days}" for one in found.type_days),
            "ended tasks stay": f"{found.task_days} days" if found.task_days else "forever",
            "next task": found.next_task_at,
            "size": binary_size(found.bytes),
            "next drop": found.next_drop_at or "never",
            "next reduction": found.next_reduction_at or "never",
            "no drop before": found.not_before,
            "days ahead": found.days_ahead,
            "archive": found.archive or "none: dropped events are deleted",
            "artifacts": _artifacts(found.artifacts),
        }
    )
    console.table(DAYS, [_day(one) for one in found.partitions], wide=output is Format.WIDE)
    if found.holds:
        console.table(HOLDS, [_hold(one) for one in found.holds], wide=output is Format.WIDE)
    if found.archive_problems:
        problems = [(one.day, one.since, one.problem) for one in found.archive_problems]
        console.table(PROBLEMS, problems, wide=output is Format.WIDE)
    if found.restores:
        console.table(RESTORES, [_restore(one) for one in found.restores], wide=output is Format.WIDE)


def show_archives(found: Sequence[ArchivedEvents], output: Format) -> None:
    """Show the days in the archive."""
    rows = [(one.day, one.project, one.events, binary_size(one.bytes), one.files, one.archived_at) for one in found]
    console.answer(output, list(found), ARCHIVES, rows)


def show_restore(found: HistoryRestore, output: Format) -> int:
    """Show the restored day, or why it is not restored. Returns 0 if it is restored, else 1."""
    if output in {Format.JSON, Format.JSONL}:
        console.answer(output, found, RESTORES, ())
    elif found.problem is None:
        console.answer(output, found, RESTORES, [_restore(found)])
    else:
        print_error(f"{found.day} is not restored: {found.problem}")
    return 0 if found.problem is None else 1


def show_hold(found: HistoryHold, output: Format) -> None:
    """Show a hold."""
    console.answer(output, found, HOLDS, [_hold(found)])


def show_release(project: str, task: str | None, *, released: bool, output: Format) -> int:
    """Show whether a hold was released. Returns 0 if so, else 1, as there was none."""
    subject = f"task {task} of project {project}" if task else f"project {project}"
    if output in {Format.JSON, Format.JSONL}:
        console.answer(output, {"project": project, "task": task, "released": released}, (), ())
    elif released:
        write_text(f"{subject} is not held any more")
    else:
        print_error(f"there is no hold of {subject}; `sandherd history status` lists all")
    return 0 if released else 1


def _artifacts(found: ArtifactStoreStatus | None) -> str:
    if found is None:
        return "in their stream only, for at most 7 days"
    parts = [f"{found.contents} in {found.location}", binary_size(found.bytes)]
    parts += [f"{found.waiting} wait"] * (found.waiting > 0)
    parts += [f"{found.over_limit} of them over the limit of their project"] * (found.over_limit > 0)
    parts += [f"{found.lost} lost"] * (found.lost > 0)
    return ", ".join(parts) + (f" ({found.problem})" if found.problem else "")


def _day(one: HistoryDay) -> Sequence[object]:
    held = "yes" if one.held else None
    return (
        *(one.day or "none", one.events, binary_size(one.bytes), one.due_at, held),
        *(one.removed or None, one.next_reduction_at),
    )


def _restore(one: HistoryRestore) -> Sequence[object]:
    return (one.day, one.project or "all", one.events, one.done_at, one.until, one.restored_by, one.problem)


def _hold(one: HistoryHold) -> Sequence[object]:
    return (one.project, one.task, one.held_at, one.held_by, one.reason)
