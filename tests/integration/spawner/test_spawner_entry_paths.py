"""Every entry path of a sandbox of the process runtime has the same confinement.

Until then only agents that a cold worker starts were attacked. The agent server's own processes are attacked where the
real one runs, in test_spawner_agent_server.py.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes.commands import Command
from spawner.runtimes.contract import SandboxPlan, WarmPlan
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.boxed import WORKER
from tests.integration.spawner.entry_paths import assert_confined, check_code

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]
UNIT = "wrm-1"
WAITING = f"""
import os, sys
import sandherd_worker.warm_start as warm
if '--warm' in sys.argv and not warm.wait_for_identity(os.environ): sys.exit()
{WORKER}"""


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A port of the host's loopback, which no sandbox may reach."""
    visitors: list[str] = []

    async def visit(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitors.append("somebody")
        writer.close()

    server = await asyncio.start_server(visit, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    assert visitors == []


async def test_every_entry_path_is_confined_like_an_agent(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, port: int
) -> None:
    """Commands in an unclaimed warm sandbox, its agent once it is claimed, and commands beside that are confined."""
    runtime = await open_process(WAITING)
    await runtime.prepare(WarmPlan(unit=UNIT, limits=SandboxLimits()))
    work = runtime.layout.directory(UNIT).work

    async def execute(mark: str) -> None:
        code = [sys.executable, "-I", "-c", check_code(mark, port)]
        ran = await runtime.run(UNIT, Command(argv=code, seconds=60))
        assert ran.code == 0, ran.err
        assert_confined(ran.out, work, mark)

    await execute("warm")
    plan = replace(plan_for("sbx-one"), unit=UNIT)
    assert_confined(await agent_report(runtime, plan, check_code("agent", port), eventually), work, "agent")
    await execute("beside")


async def agent_report(runtime: ProcessRuntime, plan: SandboxPlan, code: str, eventually: Eventually) -> str:
    """Claim a sandbox; returns what its agent prints."""
    place = runtime.layout.directory(plan.unit)
    (place.home / "attack.py").write_text(code)
    await runtime.create(plan)
    await eventually((place.state / "report").exists)
    report = json.loads((place.state / "report").read_text())
    assert report["code"] == 0, report["err"]
    return str(report["out"])
