"""A task in a sandbox at the Runtime API: a real spawner, broker and worker, and the double's pods."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.main import compose
from tests.doubles.remote.double import IMAGE, KEY, ApiError, Double
from tests.integration.spawner.conftest import ProjectUser
from tests.live_files import contents_below
from tests.polling import eventually

EDITS = ["/bin/sh", "-c", "printf 'one\\nTWO\\n' > notes.txt; until [ -e go ]; do sleep 0.05; done"]
pytestmark = [pytest.mark.timeout(900)]


@pytest.fixture
async def person(herd: Broker, tmp_path: Path) -> AsyncIterator[ProjectUser]:
    async with herd.bus(Principal.CLIENT, project="p1") as bus:
        someone = ProjectUser(bus, eventually, tmp_path)
        await someone.listen()
        yield someone


def spawner(herd: Broker, double: Double, home: Path, **values: Any) -> Service:
    """A spawner as a user with these settings has it."""
    given: dict[str, Any] = {"home": home, "runtime": "remote", "remote_api_key": KEY, "remote_api_url": double.url}
    given |= {"sandbox_image": IMAGE, "check_interval": 0.2, "stop_grace": 5, "max_attempts": 1} | values
    return compose(herd.settings(Principal.SPAWNER, **given))


def words_of_our_own() -> str:
    """Every word of the command lines of processes that this process has started.

    The variables of a pod are excluded: the real Runtime API also passes the agent server its key in them.
    """
    found: list[str] = []
    for process in psutil.Process().children(recursive=True):
        try:
            found += process.cmdline() if "bwrap" not in process.name() else []
        except psutil.Error:
            continue
    return "\n".join(found)


def contains_no_key(double: Double, *places: str) -> None:
    for key in (KEY, *double.keys):
        assert not any(key in place for place in places)


async def test_task_runs_from_submission_to_its_diff(
    herd: Broker, remote_double: Double, person: ProjectUser, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The worker is uploaded and publishes the diff, nothing is left, and no key is anywhere."""
    async with spawner(herd, remote_double, tmp_path).running():
        task = await person.submit(EDITS, files={"notes.txt": "one\ntwo\n"})
        sandbox = (await person.reaches(task, "running")).sandbox
        seen = words_of_our_own()
        await person.touch(str(sandbox), "go")
        view = await person.ended(task)
        assert view.state == "completed", [event["data"] for event in person.events]
        await person.eventually(lambda: remote_double.living() == [])
        await person.receives(str(view.sandbox), "sandbox.terminated")
    edited = [event["data"] for event in person.unique() if event["type"] == "agent.file_edited"]
    assert any("-two\n+TWO\n" in (data.get("full_diff") or "") for data in edited)
    person.check_sequences()
    captured = capfd.readouterr()
    assert "remote runtime enabled" in captured.out + captured.err
    assert remote_double.keys
    contains_no_key(remote_double, captured.out, captured.err, json.dumps(person.events), seen, *_files(tmp_path))


async def test_missing_capacity_fails_the_attempt_and_leaves_nothing(
    herd: Broker, remote_double: Double, person: ProjectUser, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The attempt fails after its time, with the API's message and without the key."""
    full = ApiError(400, "failed", f"Runtime limit reached. X-API-Key: {KEY}")
    remote_double.fail("POST", "^/start$", times=10_000, error=full)
    async with spawner(herd, remote_double, tmp_path, spawn_timeout=4).running():
        view = await person.ended(await person.submit(["true"]))
        assert view.state == "failed"
        await person.eventually(lambda: "sandbox.failed" in {event["type"] for event in person.events})
    (failed,) = [event["data"] for event in person.unique() if event["type"] == "sandbox.failed"]
    assert failed["error_type"] == "runtime_quota"
    captured = capfd.readouterr()
    contains_no_key(remote_double, captured.out, captured.err, json.dumps(person.events), *_files(tmp_path))
    assert remote_double.living() == []


async def _begun(person: ProjectUser) -> str:
    task = await person.submit(["/bin/sh", "-c", "touch began; exec sleep 600"])
    await person.reaches(task, "running")
    await person.eventually(lambda: "agent.started" in {event["type"] for event in person.events})
    return task


@pytest.mark.parametrize("wipe", [False, True])
async def test_lost_worker_is_recovered(
    herd: Broker, remote_double: Double, packed_worker: Path, person: ProjectUser, tmp_path: Path, wipe: bool
) -> None:
    """After the pod was recreated with its files unpublished events are published; without files they are lost."""
    remote_double.image.worker = packed_worker
    async with spawner(herd, remote_double, tmp_path).running():
        task = await _begun(person)
        (pod,) = remote_double.pods.values()
        await remote_double.restart(pod, "Evicted", wipe=wipe)
        assert (await person.ended(task)).state == "failed"
        await person.eventually(lambda: remote_double.living() == [])
    if not wipe:
        person.check_sequences()


async def test_lost_sandbox_is_reported(
    herd: Broker, remote_double: Double, packed_worker: Path, person: ProjectUser, tmp_path: Path
) -> None:
    """A runtime that was stopped externally fails its sandbox with that reason."""
    remote_double.image.worker = packed_worker
    async with spawner(herd, remote_double, tmp_path).running():
        task = await _begun(person)
        (pod,) = remote_double.pods.values()
        await remote_double.stop(pod)
        assert (await person.ended(task)).state == "failed"
        await person.eventually(lambda: "sandbox.failed" in {event["type"] for event in person.events})
    (failed,) = [event["data"] for event in person.unique() if event["type"] == "sandbox.failed"]
    assert failed["error_type"] == "sandbox_lost"
    assert remote_double.living() == []


def _files(folder: Path) -> list[str]:
    return [content.decode(errors="replace") for content in contents_below(folder).values()]
