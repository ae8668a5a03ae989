"""docs/upgrade.md on one machine: a herd of the last release continues with today's code."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandherd.bus.identity import HerdIdentity
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.keys import read_claims
from sandherd.client import Context, Herd
from sandherd.contracts.states import TaskState
from sandherd.stack.cluster import PROBE
from sandherd.stack.home import Home
from sandherd.stack.store_probe import StoreProbe
from tests.patience import PATIENCE
from tests.releases.archived import ROOT

PAGE = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
NEW = Path(sys.executable).parent
TAKEN_FROM_US = "git pull && make install"


@pytest.fixture
def home() -> Iterator[Path]:
    """A herd's home; not `tmp_path`, whose parents another pytest closes to the user of Postgres."""
    directory = Path(tempfile.mkdtemp(prefix="home-"))
    yield directory
    run(NEW, directory, "sandherd down")
    shutil.rmtree(directory, ignore_errors=True)


def run(programs: Path, home: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a command line with the programs of a version."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SANDHERD_")}
    variables = plain | {"SANDHERD_HOME": str(home), "PATH": f"{programs}:{NEW}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, env=variables, cwd=home, capture_output=True, text=True, check=False, timeout=120)


def checked_output(done: "subprocess.CompletedProcess[str]") -> str:
    """The output of a command that must succeed."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def steps(title: str) -> list[str]:
    """The commands of a section."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\$ (.*)$", section, re.MULTILINE)


async def send_message(home: Path, word: str) -> str:
    """Submit a task with today's client; returns its name."""
    async with Herd.connect(Context.resolve(home=home)) as herd:
        task = await herd.submit("say it", ["echo", word])
        assert (await herd.wait(task)).state is TaskState.COMPLETED
        return task


async def stored(home: Path, *tasks: str) -> None:
    """Wait until the history has the end of each of these tasks."""
    async with Herd.connect(Context.resolve(home=home)) as herd, asyncio.timeout(PATIENCE):
        while True:
            ended = [event.envelope["taskid"] async for event in herd.events(types=["task.completed"])]
            if sorted(ended) == sorted(tasks):
                return
            await asyncio.sleep(0.1)


async def probed(home: Path) -> None:
    """Replace the supervisor's credentials of the release by those of the account that today's code gives them."""
    identity = HerdIdentity(home / "identity")
    watcher, probe = Home(home).watcher_credentials, identity.root / PROBE
    for path in (watcher, probe):
        held = read_claims(parts_of(path.read_text())[0])
        assert held["nats"]["issuer_account"] == identity.root_key("store-guard").public
    async with StoreProbe.open(Context.resolve(home=home).nats_url, watcher, probe) as requested:
        assert await requested.write()
        assert await requested.read_health({"sandherd"}) == {"sandherd": "ok"}


@pytest.mark.timeout(900)
async def test_herd_of_the_last_release_continues_after_an_upgrade(old: Path, home: Path) -> None:
    """After the documented steps keys, streams and history still exist, and tasks run."""
    down, install, up, doctor = steps("On this machine")
    assert (down, install) == ("sandherd down", TAKEN_FROM_US)
    checked_output(await asyncio.to_thread(run, old.parent, home, "sandherd up"))
    before = await send_message(home, "before")
    checked_output(await asyncio.to_thread(run, old.parent, home, down))
    checked_output(await asyncio.to_thread(run, NEW, home, f"{up} && {doctor}"))
    await probed(home)
    behind = await send_message(home, "behind")
    await stored(home, before, behind)
