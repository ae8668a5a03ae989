"""What a sandbox or a client can make large, forge or repeat: bounded, refused or hidden."""

import asyncio
import base64
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sandherd.backoff import Backoff
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.events.branch import BranchOverlapFound, BranchSaved
from sandherd.contracts.repositories import Repository
from sandherd.settings.repositories import RepositorySettings
from spawner.repositories import git
from spawner.repositories.branch_choice import base_problem
from spawner.repositories.branch_diff import paths_to_approve, shown_path
from spawner.repositories.mirror import NO_COMMIT, Mirror
from spawner.repositories.mirror_paths import SCRATCH
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.trial_merges import MAX_PATHS_OF_OVERLAP, overlap_of
from spawner.repositories.work_queue import WorkQueue
from spawner.tasks.task_record import TaskRecord
from spawner.tasks.task_transitions import accepts_commits
from tests.patience import PATIENCE

LONG = "deep/" * 2400 + "ä"
MAX_EVENT = 262_144
"""The maximum bytes of an event (docs/wire.md)."""
APPROVAL = RepositorySettings().repository_approval


def test_events_with_long_paths_fit_into_a_message() -> None:
    """An agent may commit any number of paths of any length; the event that lists them is published nevertheless."""
    paths = [shown_path(f"{number}{LONG}") for number in range(100)]
    saved = BranchSaved(
        repository="r", branch="b", commit="c", commits=1, files_changed=100, additions=1, deletions=0, paths=paths
    )
    assert len(saved.model_dump_json().encode()) < MAX_EVENT / 2
    pairs = [one for number in range(20) for one in overlap_of(f"feature/{number}", [LONG] * 500)]
    found = BranchOverlapFound(repository="r", branch="b", commit="c", overlaps=pairs)
    assert len(found.model_dump_json().encode()) < MAX_EVENT / 2
    assert {len(pair.paths) for pair in pairs} == {MAX_PATHS_OF_OVERLAP}


@pytest.mark.parametrize(
    "path",
    [
        ".github/workflows/x.yml", ".GITHUB/Workflows/x.yml", ".github", ".github/workflows", ".gitlab-ci.yml",
        "bitbucket-pipelines.yml", ".woodpecker/a.yml", ".woodpecker.yml", "Jenkinsfile", "docs/CODEOWNERS",
    ],
)  # fmt: skip
def test_definitions_of_pipelines_need_approval(path: str) -> None:
    """This includes a link in place of their folder, and letters of any case."""
    assert paths_to_approve(["src/a.py", path], APPROVAL) == [path]


def test_ordinary_paths_need_none() -> None:
    """Such a path only contains the name of a pipeline's definition."""
    assert paths_to_approve(["github/workflows/x.yml", "src/.gitlab-ci.yml.txt", "a/Jenkinsfile.md"], APPROVAL) == []


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com:x/a", "https://github.com:99999/a", "https://github.com:443:80/a", "https://[::1]/a",
        "https://evil.example[vc.example]/x", "https://github.com/a?", "https://github.com/a#", "https://git\u212aub.com/a",
        "https://user:secret@github.com/a", "https://github.com/../a", "file:///etc/passwd", "ssh://github.com/a",
    ],
)  # fmt: skip
def test_urls_that_programs_read_differently_are_refused(url: str) -> None:
    """The error does not repeat a credential in the URL."""
    with pytest.raises(ValidationError) as refused:
        Repository(url=url)
    assert "secret" not in str([error["msg"] for error in refused.value.errors(include_input=False)])


@pytest.mark.parametrize("base", ["rélease", "v1@rc", "x#1", "-rf", "a..b", "a\u2028b"])
def test_base_with_an_unusual_name_is_refused_with_the_reason(base: str) -> None:
    """The repository chooses its name. The task fails, and does not wait forever."""
    assert "name another base" in (base_problem(base) or "")
    assert base_problem("release/1.0") is None


CREDENTIAL = git.GitCredential("https://git.example", "x-access-token", "ghs_16C7e42F292c6912E7710c838347Ae178B4a")


def test_credential_that_a_server_returns_is_hidden() -> None:
    """It is hidden as plain text and as in the header. Control characters are replaced."""
    pair = base64.b64encode(f"{CREDENTIAL.username}:{CREDENTIAL.password}".encode()).decode()
    printed = f"remote: denied: Basic {pair.rstrip(chr(61))}\tand\n{CREDENTIAL.password}\x1b[31m\r\u202e"
    shown = git.shown_output(printed.encode(), CREDENTIAL)
    assert shown == "remote: denied: Basic ***\tand\n***\ufffd[31m\ufffd\ufffd"


async def test_reason_for_a_refused_push_is_hidden_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server chooses the reason, and git prints it to standard output, for programs."""
    reason = f"\\033[31mtoken {CREDENTIAL.password} may not push"
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\nprintf '!\\trefs/heads/f:refs/heads/f\\t[remote rejected] ({reason})\\n'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    remote = git.RemoteRepository("https://git.example/a/b", CREDENTIAL)
    with pytest.raises(git.GitError) as refused:
        await Mirror(tmp_path / "mirror.git").push(remote, "f", expected=NO_COMMIT)
    assert str(refused.value) == "push: [remote rejected] (\ufffd[31mtoken *** may not push)"


@pytest.mark.parametrize(
    ("status", "printed"),
    [
        (-15, ""), (-9, ""), (137, ""), (128, "fatal: write error: Disk quota exceeded"),
        (128, "error: cannot fork() for index-pack: Resource temporarily unavailable"),
        (128, "fatal: unable to create temporary file: Read-only file system"),
        (128, "error: unable to open /x/objects: Too many open files"),
        (128, "error: index-pack died of signal 9"), (128, "fatal: write error: No space left on device"),
    ],
)  # fmt: skip
def test_fault_of_the_machine_is_none_of_the_commits(status: int, printed: str) -> None:
    """The bundle may be added later, so it is not refused, even where its own faults would be permanent."""
    error = git._error(status, printed)
    assert (error.fault, error.permanent, error.of_machine) == (git.GitFault.UNAVAILABLE, False, True)


def test_signals_that_a_bundle_may_cause_are_permanent() -> None:
    """These are a crash of git, and the size limit. Lines that a remote prints do not count."""
    for status, printed in ((-11, ""), (-25, ""), (128, "remote: Disk quota exceeded\nfatal: index-pack failed")):
        error = git._error(status, printed)
        assert (error.permanent, error.of_machine) == (True, False)


def task(**values: object) -> TaskRecord:
    spec = TaskSpec(text="x", harness=CommandHarness(argv=["true"]))
    now = datetime(2026, 11, 27, tzinfo=UTC)
    return TaskRecord.model_validate(
        {"project": "p1", "task": "task-1", "life": "0" * 32, "spec": spec, "runtime": "process", "limits": {}}
        | {"submitted_at": now}
        | values
    )


def test_commits_of_a_given_up_attempt_are_late_once_the_next_one_has_a_sandbox() -> None:
    """Otherwise they would prevent the commits of the current attempt."""
    before = {"attempt": 1, "sandbox": "sbx-1"}
    assert accepts_commits(task(sandbox="sbx-1"), "sbx-1")
    assert accepts_commits(task(attempt=2, previous=before), "sbx-1")
    assert not accepts_commits(task(attempt=2, previous=before, sandbox="sbx-2"), "sbx-1")
    assert not accepts_commits(task(), "sbx-1")


async def test_request_while_a_key_is_worked_on_is_not_lost() -> None:
    """The key is worked on again afterwards."""
    begun, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    worked: list[str] = []

    async def work(key: str) -> bool:
        worked.append(key)
        (done if len(worked) == 2 else begun).set()
        await go.wait()
        return False

    queue = WorkQueue(work, Backoff(1, 1), at_once=1, of_project=1)
    running = asyncio.create_task(queue.run())
    async with asyncio.timeout(PATIENCE):
        queue.request("p1.a")
        await begun.wait()
        queue.request("p1.a")
        go.set()
        await done.wait()
    running.cancel()
    assert worked == ["p1.a", "p1.a"]


async def test_one_project_can_not_stop_another() -> None:
    """The keys of the one project wait for a server that does not respond."""
    done = asyncio.Event()

    async def work(key: str) -> bool:
        if key.startswith("p1."):
            await asyncio.Event().wait()
        done.set()
        return False

    queue = WorkQueue(work, Backoff(1, 1), at_once=3, of_project=2)
    running = asyncio.create_task(queue.run())
    for number in range(10):
        queue.request(f"p1.{number}")
    queue.request("p2.a")
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    running.cancel()


async def test_one_host_can_not_stop_another() -> None:
    """Two projects have work at a host that does not respond; a third one has a local repository."""
    hung, done = asyncio.Event(), asyncio.Event()
    working: list[str] = []

    async def work(key: str) -> bool:
        if key == "p3.local":
            done.set()
            return False
        working.append(key)
        if len(working) == 3:
            hung.set()
        await asyncio.Event().wait()
        return False

    def host_of(key: str) -> str | None:
        return None if key == "p3.local" else "https://hangs.example"

    queue = WorkQueue(work, Backoff(1, 1), at_once=4, of_project=2, of_host=3, host_of=host_of)
    running = asyncio.create_task(queue.run())
    for key in ("p1.a", "p1.b", "p2.a", "p2.b"):
        queue.request(key)
    async with asyncio.timeout(PATIENCE):
        await hung.wait()
        queue.request("p3.local")
        await done.wait()
    running.cancel()
    assert working == ["p1.a", "p1.b", "p2.a"]


async def test_hosts_that_do_not_respond_leave_a_place_for_each_other_one() -> None:
    """There may be any number of them, in the same project and in others."""
    hung = asyncio.Event()
    working: list[str] = []
    others = {"p1.works", "p1.local", "p5.works"}
    done: set[str] = set()
    ended = asyncio.Event()

    async def work(key: str) -> bool:
        working.append(key)
        if key in others:
            done.add(key)
            if done == others:
                ended.set()
            return False
        if len(working) == len(hanging):
            hung.set()
        await asyncio.Event().wait()
        return False

    def host_of(key: str) -> str | None:
        name = key.partition(".")[2]
        return None if name == "local" else f"https://{name.rstrip('0123456789')}.example"

    hanging = ["p1.a1", "p1.a2", "p2.a1", "p1.b1", "p3.c1"]
    queue = WorkQueue(work, Backoff(1, 1), at_once=4, of_project=2, of_host=3, host_of=host_of)
    running = asyncio.create_task(queue.run())
    for key in (*hanging, "p2.b1", "p4.a1", "p4.c1"):
        queue.request(key)
    async with asyncio.timeout(PATIENCE):
        await hung.wait()
        for key in sorted(others):
            queue.request(key)
        await ended.wait()
    running.cancel()
    assert set(working) - others == {*hanging}


async def test_work_that_raises_ends_the_queue() -> None:
    """The exception is a fault of this program, which must not be hidden."""

    async def work(key: str) -> bool:
        raise ValueError(key)

    queue = WorkQueue(work, Backoff(1, 1), at_once=1, of_project=1)
    queue.request("p1.a")
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ValueError, match=r"p1\.a"):
            await queue.run()


async def test_requests_do_not_shorten_the_backoff() -> None:
    """A repository that does not respond is not contacted at each request."""
    worked: list[str] = []
    other = asyncio.Event()

    async def work(key: str) -> bool:
        worked.append(key)
        if key == "p2.b":
            other.set()
        return key == "p1.a"

    queue = WorkQueue(work, Backoff(3600, 3600, jitter=0), at_once=1, of_project=1)
    running = asyncio.create_task(queue.run())
    async with asyncio.timeout(PATIENCE):
        queue.request("p1.a")
        queue.request("p2.b")
        await other.wait()
        other.clear()
        queue.request("p1.a")
        queue.request("p2.b")
        await other.wait()
    running.cancel()
    assert worked == ["p1.a", "p2.b", "p2.b"]


def test_folder_that_is_removed_while_mirrors_are_measured_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pushes and saves of other branches have temporary folders in a mirror and beside it."""
    mirror = tmp_path / "p1" / "shop.git"
    for folder in (mirror / "objects", mirror / "quarantine-1", tmp_path / f"{SCRATCH}1"):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"12345")
    listed = os.scandir

    def removed_meanwhile(path: Any) -> Any:
        if str(path).endswith(("quarantine-1", f"{SCRATCH}1")):
            shutil.rmtree(path)
        return listed(path)

    absent: Any = None
    mirrors = Mirrors(tmp_path, absent, absent, 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", removed_meanwhile)
        found = mirrors.existing()
        size = Mirror(mirror).size_bytes()
    assert (found, size) == ({"p1": [mirror]}, 5)
