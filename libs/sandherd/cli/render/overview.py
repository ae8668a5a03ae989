"""Shows the results of `sandherd top` and `costs`."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from sandherd.cli.herd_session import Work
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.durations import span
from sandherd.cli.render.list_watch import at_each_change, show_screen
from sandherd.cli.render.table import Column
from sandherd.cli.stderr import print_error
from sandherd.client.herd import Herd
from sandherd.client.tasks.overview import Overview, WorkView
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import GroupUsage, Usage, UsageList
from sandherd.plurals import pluralize

REFRESH_SECONDS: Final = 5.0
"""The interval in seconds at which the table is shown again without a change, because the ages in it grow."""
TOP_HEADER: Final = (
    "TASK",
    "STATE",
    Column("NAME", 1, cut=True),
    Column("AGE", 2, whole=True),
    Column("ACTIVITY", 3, whole=True),
    Column("TOKENS", 4),
    "COST",
    Column("NEEDS", below=True),
    Column("TEXT", 5, cut=True),
)
_EVENT_DOMAINS: Final = ("task", "sandbox", "approval", "monitor")


def show_overview(output: Format, *, once: bool) -> Work:
    """A function that shows the unfinished tasks: one time, or until an interrupt on a terminal without `once`."""
    live = not once and output in {Format.TABLE, Format.WIDE} and sys.stdout.isatty()

    async def work(herd: Herd) -> int:
        async def show() -> None:
            overview = await herd.overview()
            if live:
                show_screen(summary(overview), TOP_HEADER, _rows(overview), wide=output is Format.WIDE)
            else:
                _show_once(overview, output)

        if not live:
            await show()
            return 0
        await at_each_change(herd, _EVENT_DOMAINS, show, interval_seconds=REFRESH_SECONDS)
        return 0

    return work


def _show_once(overview: Overview, output: Format) -> None:
    console.print_list(output, overview, TOP_HEADER, _rows(overview))
    if output in {Format.TABLE, Format.WIDE}:
        write_text(summary(overview))
    if overview.more and not output.shows_truncation:
        print_error(f"there are more than {len(overview.tasks)} unfinished tasks; see `sandherd tasks list`")


def summary(overview: Overview) -> str:
    """How many tasks there are, how many need a user, and what they have cost."""
    needing = sum(view.needs is not None for view in overview.tasks)
    costs = [view.cost_micro_usd for view in overview.tasks if view.cost_micro_usd is not None]
    spent = console.money(sum(costs)) if costs or not overview.tasks else "unknown"
    tasks_text, needs_text = pluralize(len(overview.tasks), "unfinished task"), pluralize(needing, "needs", "need")
    return f"{tasks_text}, {needs_text} a user, cost so far {spent}"


def _rows(overview: Overview) -> list[list[object]]:
    now = datetime.now(UTC)
    return [work_row(view, now) for view in overview.tasks]


def work_row(view: WorkView, now: datetime) -> list[object]:
    """The row of a task in `top`. Pure."""
    return [
        view.task,
        view.state,
        view.name,
        span(now - view.submitted_at),
        None if view.last_event_at is None else span(now - view.last_event_at),
        view.tokens,
        None if view.cost_micro_usd is None else console.money(view.cost_micro_usd),
        view.needs or (view.waits_for and f"({view.waits_for})"),
        " ".join(view.text.split()),
    ]


def show_costs(usage_list: UsageList, by: str, output: Format) -> None:
    """Show usage by groups, with their total below."""
    header = (by.upper(), "COST", "INPUT", "OUTPUT", Column("CACHE READ", 2), Column("CACHE WRITE", 1))
    rows = [_usage_row(group.group or "-", group) for group in usage_list.groups]
    total = [_usage_row("total", usage_list.total)] if rows and output in {Format.TABLE, Format.WIDE} else []
    if not rows and output in {Format.TABLE, Format.WIDE}:
        write_text(console.UNMETERED)
        return
    console.print_list(output, _document(usage_list, by), header, [*rows, *total])
    if usage_list.group_count > len(usage_list.groups) and not output.shows_truncation:
        print_error(
            f"there are {pluralize(usage_list.group_count, 'group')}; set a higher --limit; the total is for all groups"
        )


def _document(usage_list: UsageList, by: str) -> dict[str, object]:
    groups: Sequence[GroupUsage] = usage_list.groups
    return {
        "by": by,
        "since": usage_list.since,
        "group_count": usage_list.group_count,
        "total": usage_list.total,
        "groups": groups,
    }


def _usage_row(name: str, usage: Usage) -> list[object]:
    cost = console.money(usage.cost_micro_usd)
    return [name, cost, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens]
