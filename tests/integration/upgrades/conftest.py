"""The previous version beside today's: services and workers of both, on one broker and one database."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import asyncpg
import psutil
import pytest

from event_ingest.migrator import migrate
from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.identity.material import CLAIMS_CREDENTIALS
from sandherd.bus.identity.revocation import push_token, system_connection
from sandherd.client import Context, Herd
from sandherd.contracts.requests import DeadLetter
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.stack.postgres import PostgresServer
from tests.databases import drop_database
from tests.patience import PATIENCE
from tests.releases import installed_versions

PROGRAMS: Final = Path(installed_versions.__file__).parent
MODULE: Final = ("-P", "-m", "sandherd_worker.main")


@pytest.fixture(scope="session")
def old() -> Path:
    """The Python of the last release."""
    return installed_versions.last()


@pytest.fixture(scope="session")
def new() -> Iterator[Path]:
    """The Python of today's worker, in one folder as in an image."""
    with TemporaryDirectory(prefix="worker-") as folder:
        yield installed_versions.todays(Path(folder, "installed"))


class Site:
    """A deployment whose streams and database are already upgraded, which precedes any new code.

    The accounts' permissions and the services' credentials change with the services: versions may need different ones.
    """

    def __init__(self, broker: Broker, database: str, home: Path) -> None:
        self.broker, self.database, self.home = broker, database, home

    @asynccontextmanager
    async def services(self, python: Path, worker: Path) -> AsyncIterator[None]:
        """All services of this version, with its permissions; their spawner starts workers of that version."""
        credentials = await self._take_rights(python)
        environment = {
            "worker": [str(worker), *MODULE],
            "services": {  # a version before the gateway has no such service
                str(service): self._settings(service, credentials[service])
                for service in SERVICES
                if service in credentials
            },
        }
        log, running = self.home / "services.log", self.home / "running"
        running.unlink(missing_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                str(python), "-P", str(PROGRAMS / "services.py"), str(running), stdin=PIPE, stdout=output, stderr=output
            )
        try:
            assert process.stdin
            process.stdin.write(json.dumps(environment).encode() + b"\n")
            await until(lambda: running.exists() or process.returncode is not None)
            assert process.returncode is None, log.read_text()[-4000:]
            yield
            await asyncio.wait_for(process.communicate(b""), PATIENCE)
            assert process.returncode == 0, log.read_text()[-4000:]
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    async def _take_rights(self, python: Path) -> dict[str, str]:
        """Give the broker the accounts of this version, as `identity init` and `push` do. Returns credentials files."""
        (made,) = await program(python, "accounts.py", str(self.broker.home))
        async with system_connection(self.broker.url, self.broker.spawner_identity / CLAIMS_CREDENTIALS) as system:
            for name in (name for name in made["tokens"] if name not in {"operator", "system"}):
                await push_token(system, made["tokens"][name])
        return dict(made["credentials"])

    def _settings(self, service: Principal, credentials: str) -> dict[str, str]:
        environment = {
            "nats_url": self.broker.url,
            "database_url": self.database,
            "home": str(self.home),
            "credentials": credentials,
        }
        return environment | (
            {"identity_dir": str(self.broker.spawner_identity)} if service is Principal.SPAWNER else {}
        )

    @property
    def context(self) -> Context:
        """The home directory of a user."""
        credentials = self.broker.credentials(Principal.CLIENT)
        return Context(nats_url=self.broker.url, credentials=credentials, project="default", home=self.home)

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Herd]:
        """A connection that may read dead letters."""
        credentials = self.broker.credentials(Principal.OPERATOR)
        async with Herd.connect(replace(self.context, credentials=credentials)) as connected:
            yield connected

    async def dead(self) -> DeadLetter:
        """Wait for the only dead letter."""
        async with self.operator() as operator, asyncio.timeout(PATIENCE):
            while not (found := (await operator.dead_letters()).letters):
                await asyncio.sleep(0.05)
        (letter,) = found
        return letter

    def end_sandboxes(self) -> None:
        """End the sandboxes that a failed test has left."""
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.home) in word for word in process.info["cmdline"] or ()):
                with suppress(psutil.Error):
                    process.kill()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, checking often."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


async def program(python: Path, *words: str, stdin_events: Sequence[Any] = ()) -> list[Any]:
    """Run a program of this folder with a version's Python: JSON lines in, JSON lines out."""
    process = await asyncio.create_subprocess_exec(
        str(python), "-P", str(PROGRAMS / words[0]), *words[1:], stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    lines = "".join(json.dumps(one) + "\n" for one in stdin_events)
    async with asyncio.timeout(PATIENCE):
        out, errors = await process.communicate(lines.encode())
    assert process.returncode == 0, errors.decode()[-4000:]
    return [json.loads(line) for line in out.decode().splitlines()]


@pytest.fixture
async def empty(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """An empty database."""
    name = f"empty_{uuid4().hex}"
    await postgres_server.create_database(name)
    yield postgres_server.url(name)
    await drop_database(postgres_server, name)


@pytest.fixture
async def site(herd: Broker, empty: str, own_directory: Path) -> AsyncIterator[Site]:
    """A site provisioned by today's code, with the schema of only the first kind."""
    connection = await asyncpg.connect(empty)
    await migrate(connection, after=False)
    await connection.close()
    found = Site(herd, empty, own_directory)
    yield found
    found.end_sandboxes()


@pytest.fixture
async def client(site: Site) -> AsyncIterator[Herd]:
    """A connected client of today's version."""
    async with Herd.connect(site.context) as connected:
        yield connected


NEW: Final = Path(sys.executable)
