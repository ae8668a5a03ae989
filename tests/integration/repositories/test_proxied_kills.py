"""The spawner is killed after any step of a push through the git proxy: the next push continues from there."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.git_proxy.exchange import RequestBody
from spawner.git_proxy.proxy_decisions import head_of
from spawner.git_proxy.push_protocol import pkt_line
from spawner.git_proxy.pushes import PushReceiver
from spawner.live_state import LiveState
from spawner.repositories import branch_workflow, mirror
from spawner.repositories.branch_artifacts import BranchArtifacts
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.commit_signer import CommitSigner
from spawner.repositories.git import run_git
from spawner.repositories.mirrors import Mirrors
from tests.integration.repositories.conftest import Upstream, commit, git
from tests.integration.repositories.test_kills import Effects, HeldLease, Killed, LocalHosts, Story
from tests.integration.repositories.test_signed_commits import COMMITTER, new_key
from tests.polling import eventually

SANDBOX = "sbx-proxied"


def pack_of(clone: Path, new: str, old: str) -> bytes:
    """The pack of a push: the objects of `new` that `old` does not have."""
    command = ("git", "pack-objects", "--revs", "--thin", "--stdout", "--quiet")
    done = subprocess.run(command, cwd=clone, input=f"{new}\n^{old}\n".encode(), capture_output=True, check=True)
    return done.stdout


def body_of(branch: BranchRecord, new: str, clone: Path) -> RequestBody:
    """The body of a push of this commit to the branch."""
    old = head_of(branch)
    update = pkt_line(f"{old} {new} refs/heads/{branch.branch}\0report-status".encode())
    parts = [update + b"0000" + pack_of(clone, new, old)]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    return RequestBody(receive, 2**20, compressed=False)


class ProxiedStory(Story):
    """A task whose sandbox continues through the proxy once its first commit is pushed."""

    async def branch(self) -> BranchRecord:
        """The stored branch."""
        task = await self.prepared()
        assert task
        held = await self.live.branches.load(f"{self.project}.{task.branch}")
        assert held
        return held.record

    async def push(self, effects: Effects, monkeypatch: Any, clone: Path) -> bytes | None:
        """The report of a push to a new spawner; None if it was killed first."""
        async with self.herd.bus(Principal.SPAWNER) as bus:
            live, artifacts = LiveState(bus, Meters(CollectorRegistry())), BranchArtifacts(bus)
            monkeypatch.setattr(live.branches, "_write", effects.counted("write branch", live.branches._write))
            monkeypatch.setattr(bus, "publish_stored", effects.counted("publish event", bus.publish_stored))
            monkeypatch.setattr(artifacts, "_publish", effects.counted("publish chunk", artifacts._publish))
            with monkeypatch.context() as patched:
                patched.setattr(mirror, "run_git", effects.counted(None, run_git))
                mirrors = Mirrors(self.folder / "mirrors", LocalHosts(self.upstream.path), artifacts, 1024)
                lease: Any = HeldLease()
                works = branch_workflow.BranchWorkflow(live, lease, mirrors, artifacts, ["*.yml"], signer=self.signer)
                running = asyncio.ensure_future(run_until_first(live.follow(), works.run(), effects.dead.wait()))
                pushing = asyncio.ensure_future(self._push(live, artifacts, clone))
                try:
                    return await self._report(effects, pushing)
                finally:
                    effects.dead.set()
                    await cancel_and_wait([pushing, running])

    async def _push(self, live: LiveState, artifacts: BranchArtifacts, clone: Path) -> bytes:
        await live.branch_index.complete.wait()
        branch = await self.branch()
        if head_of(branch) == self.head:
            await eventually(self.pushed)  # git: everything up to date
            return b"ok"

        async def now() -> BranchRecord:
            return branch

        receiver = PushReceiver(live, artifacts, self.folder)
        report = await receiver.push(now, SANDBOX, self.task, body_of(branch, self.head, clone))
        await eventually(self.pushed)  # its events, too
        return report

    async def _report(self, effects: Effects, pushing: "asyncio.Future[bytes]") -> bytes | None:
        dead = asyncio.ensure_future(effects.dead.wait())
        waited: list[asyncio.Future[Any]] = [pushing, dead]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        if not pushing.done():
            return None
        return None if effects.dead.is_set() or isinstance(pushing.exception(), Killed) else pushing.result()


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)], ids=["some steps", "each step"])
async def test_push_of_a_spawner_killed_after_any_step_is_continued(
    herd: Broker, upstream: Upstream, tmp_path: Path, monkeypatch: Any, every: int
) -> None:
    """Each step is the last one of a spawner; each commit is pushed once and saved once."""
    git(upstream.path, "config", "core.logAllRefUpdates", "always")
    async with herd.bus(Principal.SPAWNER) as bus:
        story = ProxiedStory(herd, bus, upstream, tmp_path / "story", 1)
        story.folder.mkdir()
        story.signer = CommitSigner(new_key(story.folder, "ed25519").file, COMMITTER)
        await story.submit()
        await story.spawner(Effects(1000), monkeypatch)
        clone, first, number, killed = story.folder / story.task, Effects(0), 0, True
        while killed:
            story.head = commit(clone, {f"{number}.txt": "done\n"})
            first = Effects(every * number)
            report = await story.push(first, monkeypatch, clone)
            killed = len(first.names) > every * number
            if killed:
                report = await story.push(Effects(1000), monkeypatch, clone)
            number += 1
            branch = await eventually(story.pushed)
            assert report is not None
            assert b"ok" in report, (report, first.names)
            assert upstream.head(branch.branch) == branch.commit
            log = (upstream.path / "logs" / "refs" / "heads" / branch.branch).read_text().splitlines()
            assert len(log) == 1 + number, log
        assert {"publish chunk", "write branch", "unpack-objects", "push", "publish event"} <= set(first.names)
        events = (await bus.js.stream_info("EVENTS", subjects_filter=f"*.*.event.{story.project}.>")).state.subjects
        assert events
        counts = {subject.partition(f".{story.task}.")[2]: count for subject, count in events.items()}
        assert counts == {
            "task.submitted": 1,
            "branch.created": 1,
            "branch.saved": 1 + number,
            "branch.pushed": 1 + number,
        }
