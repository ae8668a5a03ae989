"""A remote herd, used by the real command through a named context."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.preloaded_cli import preloaded_sandherd


async def sandherd(home: Path, *words: str) -> tuple[int, str, str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    process = await asyncio.create_subprocess_exec(preloaded_sandherd(), *words, env=environ, stdout=PIPE, stderr=PIPE)
    out, error = await process.communicate()
    return process.returncode or 0, out.decode(), error.decode()


async def test_commands_use_the_herd_of_the_current_context(
    spawner: Callable[..., Service], person: Any, herd: Broker, tmp_path: Path
) -> None:
    """Commands use the credential and project of the context; a service's log is refused, as it is elsewhere."""
    credentials = str(herd.credentials(Principal.CLIENT, project="p1"))
    add = ("context", "add", "test", "--url", herd.url, "--credentials", credentials, "--use")
    assert await sandherd(tmp_path, *add) == (0, "context test is added, and is the current one\n", "")
    async with spawner().running():
        task = await person.submit(["true"])
        await person.ended(task)
        status, out, error = await sandherd(tmp_path, "tasks", "list", "-o", "json")
    assert (status, [one["task"] for one in json.loads(out)["tasks"]]) == (0, [task]), error
    status, out, error = await sandherd(tmp_path, "services", "logs", "spawner")
    assert (status, out, "kubectl logs" in error) == (1, "", True)
