"""A sandbox on a host that the test has created, and code that is run in it."""

import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spawner.runtimes.commands import Command
from spawner.runtimes.network import Networks
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.conftest import Open, PlanFor
from tests.integration.spawner.network.internet import Internet, internet
from tests.patience import PATIENCE

SLEEP = "import signal; signal.pause()"
PRELUDE = """
import json, socket, struct, sys, os, time
def ask(host, port, text=b"?\\n", family=0, seconds=20):
    try:
        with socket.create_connection((host, port), seconds) as one:
            one.sendall(text); one.settimeout(seconds); return one.recv(100).decode("latin-1") or "ended"
    except TimeoutError: return "hangs"
    except OSError as error: return "refused: " + str(error)
def tell(**found): print(json.dumps(found))
"""

Inside = Callable[..., Awaitable[Any]]
Sandbox = Callable[..., Awaitable[ProcessRuntime]]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Internet]:
    """An internet with a host in it."""
    if os.getuid() != 0:
        pytest.skip("only root makes network namespaces that lead anywhere")
    with internet(tmp_path) as found:
        yield found


@pytest.fixture
async def sandbox(net: Internet, open_process: Open, plan_for: PlanFor) -> Sandbox:
    """A function that starts `sbx-one` with this network."""
    net.use()

    async def start(unit: str = "sbx-one", **networks: Any) -> ProcessRuntime:
        runtime = await open_process(SLEEP, networks=Networks(**networks))
        await runtime.create(plan_for(unit))
        return runtime

    return start


async def inside(runtime: ProcessRuntime, code: str, unit: str = "sbx-one", seconds: float = PATIENCE) -> Any:
    """The report of this Python code, run inside the sandbox."""
    command = Command(argv=[sys.executable, "-I", "-c", PRELUDE + code], seconds=seconds)
    ran = await runtime.run(unit, command)
    assert ran.code == 0, ran
    return json.loads(ran.out)
