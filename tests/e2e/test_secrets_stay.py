"""The secrets of a leaking agent are searched for in all data that its run leaves."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import nats.js.errors
import pytest

from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity import HerdIdentity, Registrar
from sandherd.client import Context, Herd
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.harnesses import AcpHarness, AnyHarness
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.stack.control import down, status, up
from sandherd_worker.spool_file import scan
from tests.drivers.toolchains import TOOLCHAINS, interpreter
from tests.e2e.leaking_agent import FOUND, forms
from tests.faults.conftest import eventually
from tests.live_files import contents_below

pytestmark = [pytest.mark.e2e, pytest.mark.agents, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
SCRIPTED_ACP = HERE.parent / "drivers" / "acp" / "scripted_agent.py"
SECRETS = {
    "LEAK_PLAIN": "correct-horse-battery",
    "LEAK_AWKWARD": 'pÿthon "staple" \\ </tail&head>',
    "LEAK_LINES": "a first line of sixteen\nand the second one, too\n",
}
SELF = "exec \"$(tr '\\0' '\\n' </proc/$PPID/cmdline | head -n1)\" agent.py"
"""The interpreter of the driver, by its path as seen from inside."""
TASK = """tool t1 execute {"command": "python3 leaking_agent.py"}
sh t1 python3 leaking_agent.py
env LEAK_PLAIN
env LEAK_AWKWARD
complain correct-horse-battery
print correct-horse-battery
say The word is correct-horse-battery."""


def task(harness: AnyHarness, text: str) -> TaskSpec:
    """Submit a task whose agent leaks, and whose sandbox stays when it is done."""
    return TaskSpec(
        text=text,
        harness=harness,
        env=SECRETS,
        secret_env=frozenset(SECRETS),
        files={"leaking_agent.py": (HERE / "leaking_agent.py").read_text(), "agent.py": SCRIPTED_ACP.read_text()},
        linger_seconds=600,
    )


TASKS = {
    "command": task(CommandHarness(kind="command", argv=["python3", "leaking_agent.py"]), "leak correct-horse-battery"),
    "acp": task(AcpHarness(kind="acp", argv=["/bin/sh", "-c", SELF]), TASK),
}


@dataclass(frozen=True)
class Line:
    """A running stack, and all data that can be found in it."""

    home: Path
    herd: Herd

    async def waits(self, name: str) -> str:
        """Wait until the agent of that task is done; returns its sandbox."""

        async def look() -> str | None:
            sandbox = (await self.herd.task(name)).sandbox
            if sandbox is None:
                return None
            types = [event.envelope["type"] async for event in self.herd.events(sandbox=sandbox)]
            assert "agent.failed" not in types
            return sandbox if "agent.waiting" in types else None

        return await eventually(look)

    async def end(self, sandbox: str) -> None:
        """End the sandbox, and wait until nothing of it is left."""
        await self.herd.terminate(sandbox)

        async def look() -> bool | None:
            gone = not (self.home / "sandboxes" / sandbox).exists()
            return (gone and (await self.herd.sandbox(sandbox)).state in SANDBOX_ENDED) or None

        await eventually(look)

    def state(self, sandbox: str) -> dict[str, bytes]:
        """The worker's state directory, without the agent's inputs and the agent's own files."""
        folder = self.home / "sandboxes" / sandbox / "state"
        given = {"task.json", "environment.json"}
        found = {str(path.relative_to(folder)): content for path, content in contents_below(folder).items()}
        return {name: content for name, content in found.items() if name not in given}

    async def streams(self, *names: str) -> dict[str, bytes]:
        """All messages of these streams, or of all: subject, headers and content."""
        found: dict[str, bytes] = {}
        credentials = self.home / "reader.creds"
        credentials.write_text(Registrar(HerdIdentity(self.home / "identity")).mint_stream_admin(3600))
        url, voice = (await status(self.home)).nats_url or "", ConnectionIdentity.file(credentials)
        async with Bus.open(url, name="reader", identity=voice, inbox="_INBOX_provisioner") as bus:
            js = bus.js
            for stream in names or [one.config.name or "" for one in await js.streams_info()]:
                state = (await js.stream_info(stream)).state
                for number in range(max(1, state.first_seq), state.last_seq + 1):
                    try:
                        one = await js.get_msg(stream, number)
                    except nats.js.errors.NotFoundError:
                        continue
                    found[f"{stream} {one.subject} {number}"] = f"{one.subject}{one.headers}".encode() + (
                        one.data or b""
                    )
        return found

    async def history(self) -> dict[str, bytes]:
        """All rows of all tables of the database."""
        connection = await asyncpg.connect((await status(self.home)).database_url)
        try:
            tables = await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
            return {
                f"{table} {number}": row[0].encode()
                for (table,) in tables
                for number, row in enumerate(await connection.fetch(f'select t::text from "{table}" t'))
            }
        finally:
            await connection.close()

    def files(self) -> dict[str, bytes]:
        """Every file of the stack except the stores of broker and database, such as logs."""
        stores = (self.home / "nats", self.home / "postgres" / "data")
        found = contents_below(self.home).items()
        return {str(path): content for path, content in found if not any(map(path.is_relative_to, stores))}


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A stack, with the agents' toolchains."""
    interpreter("acp")
    home = Path(tempfile.mkdtemp(prefix="secrets-"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SANDHERD_TOOLCHAINS", str(TOOLCHAINS))
            asyncio.run(up(home))
        yield home
    finally:
        asyncio.run(down(home))
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
async def line(home: Path) -> AsyncIterator[Line]:
    """The stack, and a client of it."""
    async with Herd.connect(Context.resolve(home=home, environ={})) as herd:
        yield Line(home, herd)


def leaks(found: dict[str, bytes]) -> list[str]:
    """The places of a secret, and its form in each."""
    wanted = {form for secret in SECRETS.values() for form in forms(secret)}
    wanted |= {part for secret in SECRETS.values() for part in secret.splitlines()}
    wanted |= {part for secret in FOUND for part in secret.splitlines() if "-----" not in part}
    needles = {form: form.strip('"').rstrip("=").encode() for form in wanted}
    return [
        f"{form!r} in {name}" for name, content in found.items() for form, word in needles.items() if word in content
    ]


async def test_secret_is_stored_nowhere(line: Line) -> None:
    """No secret is in the spool, a worker's other files, events, output, artifacts, history or logs.

    After the end of the sandboxes it is nowhere at all. A command and an agent with an SDK leak all secrets.
    """
    tasks = [await line.herd.submit(task) for task in TASKS.values()]
    sandboxes = [await line.waits(task) for task in tasks]
    for sandbox in sandboxes:
        spool = contents_below(line.home / "sandboxes" / sandbox / "state" / "spool")
        records = [one for path, content in spool.items() if path.suffix == ".log" for one in scan(content).records]
        assert len(records) > 50
        assert leaks(line.state(sandbox)) == []
    messages = await line.streams("EVENTS", "OUTPUT", "ARTIFACTS")
    for sandbox in sandboxes:
        own = [content for name, content in messages.items() if f".{sandbox}." in name]
        assert b"".join(own).count(b"[redacted]") > 50, sorted(messages)
    assert {stream.split()[0] for stream in messages} == {"EVENTS", "OUTPUT", "ARTIFACTS"}
    for sandbox in sandboxes:
        await line.end(sandbox)
    for found in (await line.streams(), await line.history(), line.files()):
        assert found
        assert leaks(found) == []
