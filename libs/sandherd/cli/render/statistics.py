"""Shows the results of `sandherd overview` and `stats`."""

from collections.abc import Mapping
from typing import Final

from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.table import Column
from sandherd.cli.stderr import print_error
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import ProjectOverview, RateBucket, Statistics, StatisticsList
from sandherd.plurals import pluralize

_NEEDS_HEADER: Final = ("NEEDS", "TASK", Column("SANDBOX", 2), Column("SINCE", 1), Column("WHAT", below=True))
_RATES_HEADER: Final = ("FROM", "EVENTS", "TURNS", "CALLS", "ERRORS", "COST")
_MAX_BUCKETS: Final = 30
_BUCKET_SECONDS: Final = (60, 300, 900, 3600, 14_400, 86_400)


def bucket_of(seconds: int) -> int:
    """The smallest length of a bucket in seconds with which at most 30 buckets cover this time; at most a day. Pure."""
    return next((length for length in _BUCKET_SECONDS if seconds <= length * _MAX_BUCKETS), _BUCKET_SECONDS[-1])


def show_project(project_overview: ProjectOverview, output: Format) -> None:
    """Show the state of a project."""
    if output.is_json:
        console.print_document(output, project_overview)
        return
    wide = output is Format.WIDE
    console.print_facts(
        {"tasks": _states_text(project_overview.tasks), "sandboxes": _states_text(project_overview.sandboxes)}
    )
    if project_overview.needs:
        write_text("")
        rows = [
            (need.kind, need.task, need.approval_id or need.sandbox, need.since, need.text)
            for need in project_overview.needs
        ]
        console.print_table(_NEEDS_HEADER, rows, wide=wide)
    if project_overview.need_count > len(project_overview.needs):
        print_error(
            f"{pluralize(project_overview.need_count, 'need')}, of which {len(project_overview.needs)} are shown"
        )
    write_text("")
    console.print_table(_RATES_HEADER, [_rate_row(bucket) for bucket in project_overview.buckets], wide=wide)


def _states_text(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"


def _rate_row(bucket: RateBucket) -> list[object]:
    counts: list[object] = [bucket.events, bucket.turns, bucket.tool_calls, bucket.errors]
    return [bucket.begins_at, *counts, console.money(bucket.cost_micro_usd)]


def show_statistics(statistics_list: StatisticsList, by: str, output: Format) -> None:
    """Show statistics by groups, with their total below."""
    header = (by.upper(), "COST", "TURNS", "CALLS", "ERRORS", "INPUT", "OUTPUT", Column("CACHE", 2))
    rows = [_row(group.group or "-", group) for group in statistics_list.groups]
    total = [_row("total", statistics_list.total)] if rows and output in {Format.TABLE, Format.WIDE} else []
    document = {
        "by": by,
        **statistics_list.model_dump(exclude_none=True, include={"since", "group_count", "total", "groups"}),
    }
    console.print_list(output, document, header, [*rows, *total])
    if statistics_list.group_count > len(statistics_list.groups) and not output.shows_truncation:
        print_error(
            f"there are {pluralize(statistics_list.group_count, 'group')}; "
            "set a higher --limit; the total is for all groups"
        )


def _row(name: str, statistics: Statistics) -> list[object]:
    cost = console.money(statistics.cost_micro_usd) if _is_metered(statistics) else console.UNMETERED
    counts: list[object] = [
        statistics.turns,
        statistics.tool_calls,
        statistics.errors,
        statistics.input_tokens,
        statistics.output_tokens,
    ]
    return [name, cost, *counts, statistics.cache_read_tokens + statistics.cache_write_tokens]


def _is_metered(statistics: Statistics) -> bool:
    """Whether agents have reported their use. The harness `command` has no tokens and costs."""
    tokens = (
        statistics.input_tokens
        + statistics.output_tokens
        + statistics.cache_read_tokens
        + statistics.cache_write_tokens
    )
    return statistics.cost_micro_usd > 0 or tokens > 0
