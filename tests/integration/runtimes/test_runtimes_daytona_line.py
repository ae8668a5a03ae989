"""A task in a sandbox of Daytona: a real spawner, broker and worker, and the SDK's own requests."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.doubles.daytona.answers import ApiError
from tests.doubles.daytona.double import KEY, SNAPSHOT, Double
from tests.integration.spawner.conftest import ProjectUser
from tests.integration.spawner.spawner_environment import environment
from tests.live_files import contents_below
from tests.polling import eventually

EDITS = ["/bin/sh", "-c", "printf 'one\\nTWO\\n' > notes.txt; until [ -e go ]; do sleep 0.05; done"]


@pytest.fixture
async def person(herd: Broker, tmp_path: Path) -> AsyncIterator[ProjectUser]:
    async with herd.bus(Principal.CLIENT, project="p1") as bus:
        someone = ProjectUser(bus, eventually, tmp_path)
        await someone.listen()
        yield someone


class Spawner:
    """A spawner as a user has it: a separate process, configured by variables, with its log in a file."""

    def __init__(self, herd: Broker, double: Double, home: Path, **values: Any) -> None:
        given = {
            "home": home / "home",
            "runtime": "daytona",
            "daytona_api_key": KEY,
            "daytona_api_url": double.api_url,
            "daytona_snapshot": SNAPSHOT,
            "daytona_look_interval": 0.3,
            "check_interval": 0.2,
            "stop_grace": 5,
            "max_attempts": 1,
            "log_level": "debug",
            **values,
        }
        self._environ = environment(herd.settings(Principal.SPAWNER, **given))
        self._log = home / "spawner.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            words = [sys.executable, "-P", "-m", "spawner.main"]
            self._process = subprocess.Popen(
                words, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return self._log.read_text()

    def words_around(self) -> str:
        """Every word of all command lines and of all environments but its own."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                assert self._process is not None
                found += process.cmdline()
                found += [] if process.pid == self._process.pid else process.environ().values()
        return "\n".join(found)


async def test_task_runs_from_submission_to_its_diff(
    herd: Broker, daytona_double: Double, person: ProjectUser, tmp_path: Path
) -> None:
    """The worker is uploaded and publishes the diff, nothing is left, and the key is nowhere."""
    with Spawner(herd, daytona_double, tmp_path) as spawner:
        task = await person.submit(EDITS, files={"notes.txt": "one\ntwo\n"})
        sandbox = (await person.reaches(task, "running")).sandbox
        seen = spawner.words_around()
        await person.touch(str(sandbox), "go")
        view = await person.ended(task)
        assert view.state == "completed", [event["data"] for event in person.events]
        await person.eventually(lambda: daytona_double.living() == [])
        await person.receives(str(view.sandbox), "sandbox.terminated")
    edited = [event["data"] for event in person.unique() if event["type"] == "agent.file_edited"]
    assert any("-two\n+TWO\n" in (data.get("full_diff") or "") for data in edited)
    person.check_sequences()
    assert "daytona runtime enabled" in spawner.log()
    for place in (json.dumps(person.events), seen, *_files(tmp_path)):
        assert KEY not in place


async def test_missing_capacity_fails_the_attempt_and_leaves_nothing(
    herd: Broker, daytona_double: Double, person: ProjectUser, tmp_path: Path
) -> None:
    """The attempt fails after its time, with Daytona's message and without the key."""
    message = "Total memory limit exceeded. Maximum allowed: 10GiB."
    daytona_double.fail("POST", "/api/sandbox$", times=10_000, error=ApiError(400, f"{message} Bearer {KEY}"))
    with Spawner(herd, daytona_double, tmp_path, spawn_timeout=4):
        view = await person.ended(await person.submit(["true"]))
        assert view.state == "failed"
        await person.eventually(lambda: "sandbox.failed" in {event["type"] for event in person.events})
    (failed,) = [event["data"] for event in person.unique() if event["type"] == "sandbox.failed"]
    assert failed["error_type"] == "runtime_quota"
    for place in (json.dumps(person.events), *_files(tmp_path)):
        assert KEY not in place
    assert daytona_double.living() == []


async def test_lost_worker_is_recovered(
    herd: Broker, daytona_double: Double, packed_worker: Path, person: ProjectUser, tmp_path: Path
) -> None:
    """After the sandbox was stopped at Daytona its unpublished events are published, and it is removed."""
    daytona_double.image.worker = packed_worker
    with Spawner(herd, daytona_double, tmp_path):
        task = await person.submit(["/bin/sh", "-c", "touch began; exec sleep 600"])
        await person.reaches(task, "running")
        await person.eventually(lambda: "agent.started" in {event["type"] for event in person.events})
        (name,) = daytona_double.living()
        await daytona_double.change(daytona_double.of(name), "stopped")
        view = await person.ended(task)
        assert view.state == "failed"
        await person.eventually(lambda: daytona_double.living() == [])
    person.check_sequences()


def _files(folder: Path) -> list[str]:
    return [content.decode(errors="replace") for content in contents_below(folder).values()]
