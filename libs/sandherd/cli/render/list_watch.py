"""`--watch`: shows a list again at each change, on a terminal; else each item that has changed, as a line of JSON."""

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

REST_SECONDS: Final = 0.5
"""How long to collect changes before the list is requested again."""
_MARGIN: Final = 3
"""Lines of the screen that are not rows: the header, the line about more, and the cursor's."""

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
    """The work of showing a list at each change, until it is interrupted. `domains` are those of the events.

    Raises `HerdError` for a format that can't be shown so, before any connection is made.
    """
    show: Show
    if output is Format.JSONL:
        show = ChangedItems().show
    else:
        check_screen(output, "--watch")

        def show(items: Any) -> None:
            show_screen(None, header, [row(item) for item in items], wide=output is Format.WIDE)

    async def work(herd: Herd) -> int:
        async def shown() -> None:
            found = await find(herd)
            show(found.items if hasattr(found, "items") else getattr(found, key))

        await at_each_change(herd, domains, shown)
        return 0

    return work


def check_screen(output: Format, option: str) -> None:
    """Raise `HerdError` unless a screen can be shown: on a terminal, as a table."""
    if output not in {Format.TABLE, Format.WIDE} or not sys.stdout.isatty():
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{option} shows a screen, which needs a terminal and the format table or wide",
            field="output",
            remedy="use -o jsonl for programs",
        )


async def at_each_change(
    herd: Herd, domains: Sequence[str], show: Callable[[], Awaitable[None]], *, every: float | None = None
) -> None:
    """Show it now, and again after events of these domains, or after `every` seconds. Ends by an error only."""
    async with ChangeFeed(herd.connection, herd.project, domains) as feed:
        while True:
            feed.clear_stale()
            feed.take()
            await show()
            await _changed(feed, every)
            await asyncio.sleep(REST_SECONDS)


async def _changed(feed: ChangeFeed, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await feed.wait()
    except TimeoutError:
        return


class ChangedItems:
    """Prints the items of a list as lines of JSON: at first all, then those that differ from the last time."""

    def __init__(self) -> None:
        self._shown: Mapping[str, Any] = {}

    def show(self, items: Sequence[Any]) -> None:
        """Print those that are new or have changed."""
        found = {f"{item.project}.{getattr(item, 'task', '')}.{getattr(item, 'sandbox', '')}": item for item in items}
        for name, item in found.items():
            if self._shown.get(name) != item:
                console.line(item)
        self._shown = {**self._shown, **found}


def show_screen(title: str | None, header: Sequence[str | Column], rows: list[list[object]], *, wide: bool) -> None:
    """Show a table in place of what the terminal shows, as many rows as fit."""
    height = max(1, shutil.get_terminal_size().lines - _MARGIN - (title is not None))
    clear_screen()
    if title is not None:
        write_text(title)
    shown = rows[:height]
    while len(console.table_lines(header, shown, wide=wide)) > height + 1 and len(shown) > 1:
        del shown[-1]
    console.table(header, shown, wide=wide)
    if len(shown) < len(rows):
        write_text(f"… and {len(rows) - len(shown)} more")
    flush_output()
