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

DAYS_HEADER: Final = ("DAY", "EVENTS", "SIZE", "DROPPED", "HELD", "REMOVED", "REDUCED")
ARCHIVES_HEADER: Final = ("DAY", "PROJECT", "EVENTS", "SIZE", "FILES", "ARCHIVED")
PROBLEMS_HEADER: Final = ("DAY", "SINCE", "NOT ARCHIVED")
RESTORES_HEADER: Final = ("DAY", "PROJECT", "EVENTS", "RESTORED", "STAYS UNTIL", "BY", "PROBLEM")
HOLDS_HEADER: Final = ("PROJECT", "TASK", "SINCE", "BY", "REASON")


def show_status(history_status: HistoryStatus, output: Format) -> None:
    """Show the retention, and tables of the days, the holds, the problems of the archive and the restores."""
    if output not in {Format.TABLE, Format.WIDE}:
        console.print_list(output, history_status, DAYS_HEADER, ())
        return
    console.print_facts(
        {
            "events stay": "forever" if not history_status.days else f"{history_status.days} days",
            "of projects": ", ".join(
                f"{item.project} {item.days or 'forever'}" for item in history_status.project_days
            ),
            "of types": ", ".join(f"{item.type} {item.days}" for item in history_status.type_days),
            "ended tasks stay": f"{history_status.task_days} days" if history_status.task_days else "forever",
            "next task": history_status.next_task_at,
            "size": binary_size(history_status.bytes),
            "next drop": history_status.next_drop_at or "never",
            "next reduction": history_status.next_reduction_at or "never",
            "no drop before": history_status.not_before,
            "days ahead": history_status.days_ahead,
            "archive": history_status.archive or "none: dropped events are deleted",
            "artifacts": _artifacts_text(history_status.artifacts),
        }
    )
    console.print_table(DAYS_HEADER, [_day_row(day) for day in history_status.partitions], wide=output is Format.WIDE)
    if history_status.holds:
        console.print_table(
            HOLDS_HEADER, [_hold_row(hold) for hold in history_status.holds], wide=output is Format.WIDE
        )
    if history_status.archive_problems:
        problems = [(item.day, item.since, item.problem) for item in history_status.archive_problems]
        console.print_table(PROBLEMS_HEADER, problems, wide=output is Format.WIDE)
    if history_status.restores:
        console.print_table(
            RESTORES_HEADER, [_restore_row(restore) for restore in history_status.restores], wide=output is Format.WIDE
        )


def show_archives(archived_days: Sequence[ArchivedEvents], output: Format) -> None:
    """Show the days in the archive."""
    rows = [
        (day.day, day.project, day.events, binary_size(day.bytes), day.files, day.archived_at) for day in archived_days
    ]
    console.print_list(output, list(archived_days), ARCHIVES_HEADER, rows)


def show_restore(history_restore: HistoryRestore, output: Format) -> int:
    """Show the restored day, or why it is not restored. Returns 0 if it is restored, else 1."""
    if output in {Format.JSON, Format.JSONL}:
        console.print_list(output, history_restore, RESTORES_HEADER, ())
    elif history_restore.problem is None:
        console.print_list(output, history_restore, RESTORES_HEADER, [_restore_row(history_restore)])
    else:
        print_error(f"{history_restore.day} is not restored: {history_restore.problem}")
    return 0 if history_restore.problem is None else 1


def show_hold(history_hold: HistoryHold, output: Format) -> None:
    """Show a hold."""
    console.print_list(output, history_hold, HOLDS_HEADER, [_hold_row(history_hold)])


def show_release(project: str, task: str | None, *, released: bool, output: Format) -> int:
    """Show whether a hold was released. Returns 0 if it was, or 1 if there was none."""
    subject = f"task {task} of project {project}" if task else f"project {project}"
    if output in {Format.JSON, Format.JSONL}:
        console.print_list(output, {"project": project, "task": task, "released": released}, (), ())
    elif released:
        write_text(f"{subject} is not held any more")
    else:
        print_error(f"there is no hold of {subject}; `sandherd history status` lists all")
    return 0 if released else 1


def _artifacts_text(artifact_store_status: ArtifactStoreStatus | None) -> str:
    if artifact_store_status is None:
        return "in their stream only, for at most 7 days"
    parts = [
        f"{artifact_store_status.contents} in {artifact_store_status.location}",
        binary_size(artifact_store_status.bytes),
    ]
    parts += [f"{artifact_store_status.waiting} wait"] * (artifact_store_status.waiting > 0)
    parts += [f"{artifact_store_status.over_limit} of them over the limit of their project"] * (
        artifact_store_status.over_limit > 0
    )
    parts += [f"{artifact_store_status.lost} lost"] * (artifact_store_status.lost > 0)
    return ", ".join(parts) + (f" ({artifact_store_status.problem})" if artifact_store_status.problem else "")


def _day_row(history_day: HistoryDay) -> Sequence[object]:
    held_text = "yes" if history_day.held else None
    return (
        *(history_day.day or "none", history_day.events, binary_size(history_day.bytes), history_day.due_at, held_text),
        *(history_day.removed or None, history_day.next_reduction_at),
    )


def _restore_row(history_restore: HistoryRestore) -> Sequence[object]:
    return (
        history_restore.day,
        history_restore.project or "all",
        history_restore.events,
        history_restore.done_at,
        history_restore.until,
        history_restore.restored_by,
        history_restore.problem,
    )


def _hold_row(history_hold: HistoryHold) -> Sequence[object]:
    return (history_hold.project, history_hold.task, history_hold.held_at, history_hold.held_by, history_hold.reason)
