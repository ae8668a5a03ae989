"""Implements `--watch`: shows a list again after each change on a terminal, or prints changed items as JSON lines."""

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from sandherd.cli.herd_session import Work
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.table import Column
from sandherd.client.errors import HerdError
from sandherd.client.events.change_feed import ChangeFeed
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import clear_screen, flush_output, write_text
from sandherd.contracts.errors import Code

COLLECT_SECONDS: Final = 0.5
"""How long to collect changes before the list is requested again."""
_MARGIN_LINES: Final = 3
"""Lines of the screen that are not rows: the header, the number of omitted rows, and the line of the cursor."""

Show = Callable[[Any], None]


def watch_list(
    find: Callable[[Herd], Awaitable[Any]],
    row: Callable[[Any], list[object]],
    *,
    key: str,
    header: Sequence[str | Column],
    output: Format,
    domains: Sequence[str],
) -> Work:
    """A function that shows a list now and after each event of these domains, until it is interrupted.

    `find` requests the list. `key` is the field of the reply that has the items.

    Raises `HerdError` for an output format that can't be watched, before any connection is made.
    """
    show: Show
    if output is Format.JSONL:
        show = ChangedItems().show
    else:
        check_screen(output, "--watch")

        def show(items: Any) -> None:
            show_screen(None, header, [row(item) for item in items], wide=output is Format.WIDE)

    async def work(herd: Herd) -> int:
        async def refresh() -> None:
            reply = await find(herd)
            show(reply.items if hasattr(reply, "items") else getattr(reply, key))

        await at_each_change(herd, domains, refresh)
        return 0

    return work


def check_screen(output: Format, option: str) -> None:
    """Raise `HerdError` unless standard output is a terminal and the format a table."""
    if output not in {Format.TABLE, Format.WIDE} or not sys.stdout.isatty():
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{option} shows a screen, which needs a terminal and the format table or wide",
            field="output",
            remedy="use -o jsonl for programs",
        )


async def at_each_change(
    herd: Herd, domains: Sequence[str], show: Callable[[], Awaitable[None]], *, interval_seconds: float | None = None
) -> None:
    """Call `show` now, after events of these domains, and after each `interval_seconds` without such an event.

    It ends only by an error.
    """
    async with ChangeFeed(herd.connection, herd.project, domains) as feed:
        while True:
            feed.clear_stale()
            feed.take()
            await show()
            await _wait_for_change(feed, interval_seconds)
            await asyncio.sleep(COLLECT_SECONDS)


async def _wait_for_change(feed: ChangeFeed, timeout: float | None) -> None:
    try:
        async with asyncio.timeout(timeout):
            await feed.wait()
    except TimeoutError:
        return


class ChangedItems:
    """Prints the items of a list as lines of JSON: first all items, then the items that have changed."""

    def __init__(self) -> None:
        self._shown: Mapping[str, Any] = {}

    def show(self, items: Sequence[Any]) -> None:
        """Print the items that are new or have changed since the last call."""
        by_name = {f"{item.project}.{getattr(item, 'task', '')}.{getattr(item, 'sandbox', '')}": item for item in items}
        for name, item in by_name.items():
            if self._shown.get(name) != item:
                console.print_line(item)
        self._shown = {**self._shown, **by_name}


def show_screen(title: str | None, header: Sequence[str | Column], rows: list[list[object]], *, wide: bool) -> None:
    """Clear the terminal, and show as many rows of a table as fit on it."""
    height = max(1, shutil.get_terminal_size().lines - _MARGIN_LINES - (title is not None))
    clear_screen()
    if title is not None:
        write_text(title)
    visible_rows = rows[:height]
    while len(console.table_lines(header, visible_rows, wide=wide)) > height + 1 and len(visible_rows) > 1:
        del visible_rows[-1]
    console.print_table(header, visible_rows, wide=wide)
    if len(visible_rows) < len(rows):
        write_text(f"… and {len(rows) - len(visible_rows)} more")
    flush_output()
