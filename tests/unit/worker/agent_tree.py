"""A work tree in which a branch is checked out, without a broker; what its agent does is a script."""

import os
import subprocess
from pathlib import Path
from typing import Any

from sandherd.contracts.events import EventData
from sandherd.contracts.events.access import AgentBranchSaved
from sandherd.contracts.specs import TaskSpec
from sandherd_worker.broker_session import CurrentConnection
from sandherd_worker.emitter import Emitter
from sandherd_worker.inbox import DeliveredMessages, Inbox
from sandherd_worker.processes import ProcessOwnership, Reaper
from sandherd_worker.redaction import Redactor
from sandherd_worker.repository.branch_saver import BranchSaver
from sandherd_worker.repository.checkout import check_out
from sandherd_worker.repository.commit_identity import identity_of
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import RecordKind
from sandherd_worker.worker_exit import StopRequest
from sandherd_worker.worker_resources import WorkerResources
from tests.task_repositories import Origin, git

SECRET = "hunter2-hunter2"
AS_AGENT = "export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b; "


class AgentTree:
    """A work tree in which a branch is checked out, and the saver of the branch."""

    def __init__(
        self, origin: Origin, resources: WorkerResources, spool: Spool, records: Any, published_of: Any
    ) -> None:
        self.origin, self.resources, self._spool, self._records, self._published = (
            origin,
            resources,
            spool,
            records,
            published_of,
        )
        self.work = resources.assignment.work_dir
        self.published: list[EventData] = []
        self.spec = TaskSpec.model_validate({"text": "x", "harness": {"kind": "command", "argv": ["x"]}})
        self.saver = BranchSaver(self.spec, resources)

    async def check_out(self, *, restored: bool = False, **fields: Any) -> bool:
        repository = {**self.origin.checkout(), **fields.pop("repository", {})}
        document = {"text": "Do it", "harness": {"kind": "command", "argv": ["x"]}, "repository": repository, **fields}
        self.spec = TaskSpec.model_validate(document)
        self.saver = BranchSaver(self.spec, self.resources)
        assert self.spec.repository is not None

        async def publish(event: EventData) -> None:
            self.published.append(event)

        return await check_out(self.spec.repository, identity_of(self.spec), self.resources, publish, restored=restored)

    def agent(self, script: str) -> None:
        """What the agent does."""
        ran = subprocess.run(["/bin/bash", "-ec", AS_AGENT + script], cwd=self.work, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr.decode()

    async def saved(self) -> AgentBranchSaved:
        """Save the branch; returns the event."""
        assert await self.saver.save() is not None
        event: AgentBranchSaved = self._published(self._spool)[-1].data
        return event

    def events(self) -> list[Any]:
        return [event.data for event in self._published(self._spool)]

    def received(self, saved: AgentBranchSaved) -> Path:
        """A clone of the base that has accepted the bundle."""
        assert saved.bundle is not None
        chunks = [one for one in self._records(self._spool) if one.kind is RecordKind.ARTIFACT]
        found = [one.payload for one in chunks if one.subject == saved.bundle.subject]
        return self.origin.accepted(b"".join(found), saved)


def made(tmp_path: Path, spool: Spool, reaper: Reaper, assignment: Any, records: Any, published_of: Any) -> AgentTree:
    """One whose mirror is mounted; the branch is not checked out yet."""
    origin = Origin(tmp_path / "origin")
    who = assignment(
        tmp_path,
        SANDHERD_REPOSITORY=str(origin.mirrored()),
        SANDHERD_MAX_WORK_BYTES="1000000",
        PATH=os.environ["PATH"],
        HOME=str(tmp_path),
    )
    who.work_dir.mkdir()
    emitter = Emitter(spool, who, Redactor([SECRET]))
    resources = WorkerResources(
        assignment=who,
        spool=spool,
        emitter=emitter,
        inbox=Inbox(who, emitter, DeliveredMessages(tmp_path / "injected")),
        line=CurrentConnection(),
        reaper=reaper,
        ownership=ProcessOwnership(),
        stop=StopRequest(),
    )
    return AgentTree(origin, resources, spool, records, published_of)


def log(clone: Path) -> list[str]:
    return git(clone, "log", "--format=%s", "saved").splitlines()


def files(clone: Path) -> list[str]:
    return git(clone, "ls-tree", "-r", "--name-only", "saved").splitlines()
