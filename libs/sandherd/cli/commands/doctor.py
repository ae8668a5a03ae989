"""`sandherd doctor`: finds problems and names remedies."""

from typing import TYPE_CHECKING

import typer

from sandherd.cli.options import Format, HerdLocation, Output, Project, example
from sandherd.cli.render.table import Column

if TYPE_CHECKING:
    from datetime import datetime

    from sandherd.client.context import Context
    from sandherd.client.doctor.check import Check

EXAMPLE = example("sandherd doctor", "sandherd doctor -o json")
HEADER = (Column("CHECK", whole=True), "STATE", Column("FOUND", spills=True), Column("REMEDY", below=True))
_STATE_TEXTS = {"look": "warning", "wrong": "error"}
"""The texts in the table of states that have another text in JSON."""
_CHECK_NAMES = {"unsaid": "unpublished events"}
"""The names in the table of checks that have another name in JSON."""


def doctor(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """Check the herd, and name a remedy for each problem.

    Checks the credential, the broker (each server, if there are several), the clock, the services, their consumers,
    lag, and events that could not be published. The exit status is 1 if a check has the state error (JSON: wrong).
    """
    import asyncio
    from dataclasses import replace
    from datetime import UTC, datetime

    from sandherd.cli.herd_session import command_context
    from sandherd.cli.home_option import with_home
    from sandherd.cli.render.console import print_list
    from sandherd.cli.status_line import StatusLine
    from sandherd.client.doctor.check import CheckState
    from sandherd.telemetry import logs

    logs.configure("client", "critical")
    with StatusLine("checking credential, broker and services"):
        checks = asyncio.run(_run_checks(command_context(ctx, project=project), datetime.now(UTC)))
    home = (ctx.find_object(HerdLocation) or HerdLocation()).home
    checks = [replace(c, remedy=with_home(c.remedy, home)) if c.remedy else c for c in checks]
    document = [{"check": c.name, "state": c.state, "found": c.found, "remedy": c.remedy} for c in checks]
    print_list(
        output,
        document,
        HEADER,
        [
            [_CHECK_NAMES.get(c.name, c.name), _STATE_TEXTS.get(c.state, c.state), c.found, c.remedy or ""]
            for c in checks
        ],
    )
    return 1 if any(check.state is CheckState.WRONG for check in checks) else 0


async def _run_checks(context: "Context", now: "datetime") -> "list[Check]":
    from sandherd.cli.doctor.checks import examine
    from sandherd.cli.doctor.infrastructure import check_servers

    return [*await examine(context, now), *await check_servers(context)]
