"""`sandherd doctor`: what is wrong, and what helps."""

from typing import TYPE_CHECKING

import typer

from sandherd.client.cli.options import Format, Output, Project, example

if TYPE_CHECKING:
    from datetime import datetime

    from sandherd.client.cli.checks import Check
    from sandherd.client.context import Context

EXAMPLE = example("sandherd doctor", "sandherd doctor -o json")
HEADER = ("CHECK", "STATE", "FOUND", "REMEDY")


def doctor(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """What is wrong, and what helps.

    Looks at credential, broker (each of its servers, where there are several), clock, services, their consumers, what
    lags behind, and what was left unsaid. The exit status is 1 if something is wrong.
    """
    import asyncio
    from datetime import UTC, datetime

    from sandherd.client.cli.checks import State
    from sandherd.client.cli.printing import answer
    from sandherd.client.cli.talking import where
    from sandherd.telemetry import logs

    logs.configure("client", "critical")
    checks = asyncio.run(_look(where(ctx, project=project), datetime.now(UTC)))
    document = [{"check": c.name, "state": c.state, "found": c.found, "remedy": c.remedy} for c in checks]
    answer(output, document, HEADER, [[c.name, c.state, c.found, c.remedy or ""] for c in checks])
    return 1 if any(check.state is State.WRONG for check in checks) else 0


async def _look(context: "Context", now: "datetime") -> "list[Check]":
    from sandherd.client.cli.examining import examine
    from sandherd.client.cli.servers import look_at_servers

    return [*await examine(context, now), *await look_at_servers(context)]
