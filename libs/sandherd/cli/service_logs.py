"""Shows the log of a part of the local stack. For another herd, an error names the command that shows its logs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sandherd.cli.options import Format
from sandherd.cli.render.console import print_line
from sandherd.client.context import Context
from sandherd.client.errors import HerdError
from sandherd.client.terminal_text import has_reader, write_text
from sandherd.contracts.errors import Code
from sandherd.settings.loader import SettingSource

if TYPE_CHECKING:
    from sandherd.cli.local_stack import stack

_POLL_SECONDS: Final = 0.3
"""The interval in seconds at which a followed log is read again."""
_LOGS_REMEDY: Final = (
    "on Kubernetes `kubectl logs` shows it, with docker compose `docker compose logs`; "
    "for a local stack omit --nats-url and NATS_URL, and name its directory with --home"
)


async def show(context: Context, service: str, output: Format, *, follow: bool, lines: int) -> int:
    """Show the last lines of a log; with `follow` also new lines, until the reader of the output exits. Returns 0.

    Raises `HerdError`.
    """
    from sandherd.cli.local_stack import stack

    home = stack.Home(context.home)
    names = stack.log_names(home)
    _check_local(context, stack.read_context(home).get("nats_url"), names)
    if service not in names:
        known = ", ".join(names)
        raise HerdError.of(
            Code.NOT_FOUND, f"{home.logs} has no log of {service!r}", field="service", remedy=f"use one of {known}"
        )
    async for text in _lines(stack.PartLog(home, service), lines, follow=follow):
        if output.is_json:
            print_line({"service": service, "line": text} | _record(text))
        else:
            write_text(text, flush=follow)
    return 0


def _record(text: str) -> dict[str, Any]:
    """The field `record` with the fields of a line that is a JSON object; empty for any other line.

    All parts but the broker and the database log JSON.
    """
    with suppress(ValueError, RecursionError):
        if isinstance(document := json.loads(text), dict):
            return {"record": document}
    return {}


def _check_local(context: Context, stack_url: str | None, names: list[str]) -> None:
    """Raise `HerdError` if the addressed herd is not the local stack of its home."""
    if context.sources.get("nats_url") != SettingSource.DEFAULT and context.nats_url != stack_url:
        raise no_logs_error(f"the herd at {context.nats_url} is not the local stack of {context.home}")
    if not names:
        raise no_logs_error(f"no local stack was started in {context.home}")


def no_logs_error(reason: str) -> HerdError:
    """The error for a herd whose services are not on this machine."""
    return HerdError.of(Code.UNAVAILABLE, f"{reason}: there are no logs of its services here", remedy=_LOGS_REMEDY)


async def _lines(log: "stack.PartLog", lines: int, *, follow: bool) -> AsyncIterator[str]:
    for text in log.last_lines(lines):
        yield text
    while follow and has_reader():
        for text in log.new_lines():
            yield text
        await asyncio.sleep(_POLL_SECONDS)
