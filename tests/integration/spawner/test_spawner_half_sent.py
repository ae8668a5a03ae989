"""Half-sent HTTP requests at a real spawner, as a process in a sandbox that shares its loopback sends them."""

import asyncio
import re
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.spawner.spawner_environment import environment
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_python

PROGRAM = Path(__file__).with_name("whole_spawner.py")
ATTACKER = Path(__file__).with_name("half_sender.py")
CONNECTIONS = 2000
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
EVICTED = 'sandherd_http_connections_dropped_total{reason="evicted"}'
USUAL = 1024
"""The soft limit of open files with which most systems start programs."""


@asynccontextmanager
async def attacked(port: int) -> AsyncIterator[None]:
    """Hold half-sent requests in a process; at the start of the block each connection was opened once."""
    attacker = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ATTACKER), str(port), str(CONNECTIONS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert attacker.stdin is not None
    assert attacker.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            assert await attacker.stdout.readline() == b"opened\n"
        yield
    finally:
        attacker.stdin.close()
        await attacker.wait()


@pytest.fixture
async def spawner_port(herd: Broker, home: Path, tmp_path: Path) -> AsyncIterator[int]:
    """The HTTP port of a spawner in a separate process, started with the usual soft limit."""
    settings = herd.settings(
        Principal.SPAWNER, home=home, check_interval=0.2, stop_grace=5, http_port_file=tmp_path / "port"
    )
    process = await asyncio.create_subprocess_exec(
        *(preloaded_python(), str(PROGRAM), str(min(USUAL, HARD))),
        env=environment(settings) | {"SANDHERD_HTTP_PORT_FILE": str(tmp_path / "port")},
    )
    try:
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "port").is_file() or not (tmp_path / "port").read_text():
                await asyncio.sleep(0.02)
        port = int((tmp_path / "port").read_text())
        async with asyncio.timeout(PATIENCE):
            while await _status(port, "/readyz") != 200:  # it listens before its runtime is open
                await asyncio.sleep(0.02)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.skipif(HARD < 2 * CONNECTIONS, reason="this host lets no process open so many files")
async def test_half_sent_requests_block_no_other(spawner_port: int, person: Any) -> None:
    """Against 2,000 half-sent requests the probes respond, a task runs to its end, and descriptors suffice."""
    async with attacked(spawner_port):
        task = await person.submit(["true"])
        for path in ("/healthz", "/readyz", "/healthz", "/readyz"):
            assert await _status(spawner_port, path) == 200
        assert (await person.ended(task)).state == "completed"
        assert await _status(spawner_port, "/readyz") == 200
        async with asyncio.timeout(PATIENCE):
            while (page := await _page(spawner_port, "/metrics")) and _measured(page, EVICTED) < CONNECTIONS / 2:
                await asyncio.sleep(0.1)
    assert _measured(page, "process_max_fds") == HARD


async def _page(port: int, path: str) -> str:
    async with (
        ClientSession(timeout=ClientTimeout(PATIENCE)) as web,
        web.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return await answer.text()


async def _status(port: int, path: str) -> int:
    """The status of the response to one request, without a retry."""
    async with (
        ClientSession(timeout=ClientTimeout(PATIENCE)) as web,
        web.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status


def _measured(page: str, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0
