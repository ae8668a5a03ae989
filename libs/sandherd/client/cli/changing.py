"""Commands that wait until what was asked for is so, and show how it stands then."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from sandherd.client.cli.listing import Find
from sandherd.client.cli.options import Format
from sandherd.client.terminal_text import put

if TYPE_CHECKING:
    from sandherd.client.herd import Herd


def changed(
    ctx: typer.Context, change: Find, said: Callable[[Any], str], *, project: str | None, output: Format
) -> int:
    """Change something, and say how it stands now. A refusal is the error of the command."""
    from sandherd.client.cli.printing import document
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        view = await change(herd)
        if output is Format.JSON:
            document(view)
        else:
            put(said(view))
        return 0

    return talk(ctx, work, project=project)
