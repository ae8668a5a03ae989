"""A program that does with its runtime what an ordinary user's spawner does, from where its programs begin.

    python ordinary_spawner.py HOME [create|run|remove NAME] [covered]

It prints what it finds as JSON.
"""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from sandherd.settings import Settings
from spawner.runtimes import isolation
from spawner.runtimes.commands import Command
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime
from spawner.runtimes.process import ProcessRuntime
from spawner.runtimes.registry import enter_namespace
from tests.integration.spawner.conftest import plan_for

WORKER = (sys.executable, "-P", "-c", "import signal; signal.pause()")


async def main(settings: Settings, words: list[str]) -> None:
    """Open the runtime, do what is requested, and close it; sandboxes live on."""
    runtime = await open_runtime(replace(ProcessRuntimeOptions.of(settings, WORKER), use_groups=False))
    try:
        done = await act(runtime, *words) if words else None
    finally:
        await runtime.close()
    capabilities = runtime.capabilities
    print(json.dumps([capabilities.isolation, capabilities.host_uid, list(capabilities.gaps), runtime.refusal, done]))


async def act(runtime: ProcessRuntime, what: str, name: str) -> str | None:
    """Do what is requested with this sandbox."""
    if what == "create":
        await runtime.create(plan_for(name))
    if what == "remove":
        await runtime.remove(name)
    return (await runtime.run(name, Command(argv=["id", "-u"]))).out.decode() if what == "run" else None


if __name__ == "__main__":
    home, *requested = sys.argv[1:]
    if requested[-1:] == ["covered"]:
        isolation._STAGES = ()  # type: ignore[misc, assignment]  # as where something that sandboxes see lies in each of them
        requested.pop()
    found = Settings(home=Path(home))
    enter_namespace(found)
    asyncio.run(main(found, requested))
