"""Runs the commands of docs/backup.md with a broker and a database; Compose and kubectl are stand-ins."""

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote
from uuid import uuid4

from sandherd.stack.broker import Broker
from sandherd.stack.postgres import PostgresServer, binaries
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime
from tests.databases import drop_database
from tests.e2e.line import SANDHERD
from tests.integration.operating.herds import sandherd

PAGE = Path(__file__).parents[3] / "docs" / "backup.md"
COMPOSE = """#!/bin/sh
# In place of Docker Compose: what it would run in a container is run here, and what it would start is not.
echo "$*" >> "$SAID"
case "$*" in
  *"tar identity"*) for last; do shift; [ "$last" = identity ] && break; done; shift 2; exec tar -C "$HERD" "$@" ;;
  *"exec -T postgres"*) shift 4; program=$1; shift 3; exec "$POSTGRES/$program" -U postgres "$@" ;;
esac
"""
KUBECTL = """#!/bin/sh
# In place of kubectl: the broker can be reached already, and services run here.
echo "$*" >> "$SAID"
"""


@dataclass
class Place:
    """A machine with a broker, a database, and the home of a spawner."""

    broker: Broker
    database: str
    home: Path
    keys: Path

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return sandherd(self.broker, *words, "--identity", str(self.keys), "-o", "json")

    async def end_sandboxes(self) -> None:
        runtime = await open_runtime(
            ProcessRuntimeOptions(root=self.home / "sandboxes", quarantine=self.home / "kept", isolation="none")
        )
        for seen in await runtime.find_all():
            await runtime.remove(seen.unit)
        await runtime.close()


@asynccontextmanager
async def place(server: PostgresServer, keys: Path | None = None) -> AsyncIterator[Place]:
    """A new machine with an empty database; with `keys`, the broker has that identity."""
    folder, name = Path(tempfile.mkdtemp(prefix="place-")), f"test_{uuid4().hex}"
    if keys:
        shutil.copytree(keys, folder / "broker/identity")
    broker = Broker(folder / "broker")
    await server.create_database(name)
    found = Place(broker, server.url(name), folder / "home", folder / "broker/identity")
    try:
        await broker.start()
        yield found
    finally:
        await found.end_sandboxes()
        await broker.kill()
        await drop_database(server, name)
        shutil.rmtree(folder, ignore_errors=True)


def shown(title: str, number: int) -> str:
    """The commands of this block below a heading of the page."""
    section = PAGE.read_text().partition(f"## {title}\n")[2]
    block: str = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[number]
    return "".join(line.removeprefix("$ ") for line in block.splitlines(keepends=True))


def surroundings(at: Place, folder: Path) -> dict[str, str]:
    """The environment of the commands: programs, the keys in their places, the broker and the database."""
    programs, volume = folder / "programs", at.home.parent / "volume"
    programs.mkdir(exist_ok=True)
    shutil.copytree(at.keys, volume / "identity", dirs_exist_ok=True)
    for program, script in (("docker", COMPOSE), ("kubectl", KUBECTL)):
        (programs / program).write_text(script)
        (programs / program).chmod(0o755)
    sockets = at.database.partition("?host=")[2]
    return {
        **os.environ,
        "PATH": f"{programs}:{SANDHERD.parent}:{binaries()}:{os.environ['PATH']}",
        "HERD": str(volume),
        "SAID": str(folder / "said"),
        "POSTGRES": str(binaries()),
        "PGHOST": unquote(sockets),
        "DATABASE_URL": at.database,
        "NATS_URL": at.broker.url,
        "SANDHERD_HOME": str(folder / "nowhere"),
    }


async def followed(title: str, at: Place, folder: Path, number: int = 0, until: str | None = None) -> list[str]:
    """Run the commands below a heading of the page. Returns the arguments of Compose or kubectl."""
    log_file, name = folder / "said", at.database.partition("@/")[2].partition("?")[0]
    log_file.write_text("")
    variables = surroundings(at, folder)
    # Its database has a unique name, as tests share one server.
    shall = "set -eu\n" + shown(title, number).partition(until or "\0")[0]
    script = re.sub(r"(?<= )sandherd(?= [<>]|$)", name, shall, flags=re.MULTILINE)
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", script], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return log_file.read_text().splitlines()
