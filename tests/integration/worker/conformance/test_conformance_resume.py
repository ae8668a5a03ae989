"""A new task resumes the session of an earlier one, with every kind of agent that has sessions."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sandherd.contracts.names import new_name
from sandherd.contracts.resume import Resume
from sandherd_worker.worker_exit import ExitCode
from tests.integration.worker.conformance.acts import Edit, Recall, Run, Say
from tests.integration.worker.conformance.adapters import Adapter

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]

SECRET = "correct-horse-battery"
NEW = {"b": "new\n"}


async def left(agent: Adapter, sandbox: Any, **fields: Any) -> dict[str, Any]:
    """The references with which a client continues the task that has just ended."""
    ended = (await sandbox.events("completed", "failed"))[-1].data
    saved = [event.data for event in await sandbox.events("transcript_saved") if event.data.session_id]
    if saved:
        assert {one.session_id for one in saved} == {ended.session_id}
    known = {"task": "task-1", "attempt": 1, "sandbox": sandbox.name, "harness": agent.kind}
    transcript = saved[-1].artifact if saved else None
    resume = Resume.model_validate({**known, "session_id": ended.session_id, "transcript": transcript, **fields})
    return resume.model_dump(mode="json")


async def packed(sandbox: Any, *names: str) -> Any:
    """Store an archive of these files of the work tree as a worker does."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in names:
            archive.add(sandbox.work / name, name)
    return (await sandbox.put_aside(content.getvalue())).model_dump()


def move(sandbox: Any, home: Path) -> None:
    """Another sandbox, which is empty."""
    sandbox.name = new_name("sbx")
    sandbox.work, sandbox.state = home / "work", home / "state"
    sandbox.work.mkdir(parents=True)
    sandbox.state.mkdir()


async def test_task_resumes_an_earlier_session(agent: Adapter, sandbox: Any, tmp_path: Path) -> None:
    """A fork and a resumed session know the earlier conversation; the fork has another id.

    The fork leaves its source unchanged and can be resumed itself. The earlier work tree is restored before the agent
    starts, below the task's files, and is reported as no change.
    """
    if agent.kind == "command":
        with pytest.raises(ValidationError, match="Input should be 'claude', 'openhands' or 'acp'"):
            Resume.model_validate({"task": "t", "attempt": 1, "sandbox": "s", "harness": "command", "session_id": "x"})
        return
    write = Run("mkdir src; echo old >src/a; echo old >b")
    agent.begins(Edit("pelican.txt", "one"), write, Say("Done."), secrets={"KEY": SECRET})
    assert await sandbox.run() == ExitCode.DRAINED
    old = await left(agent, sandbox)
    assert SECRET not in str(old)
    earlier = {"fork": True, "work": await packed(sandbox, "src/a", "b")}
    move(sandbox, tmp_path / "fork")
    steps = Recall(), Edit("heron.txt", "two"), Run("cat src/a b >c"), Say("Well.")
    agent.begins(*steps, resume={**old, **earlier}, files=NEW)
    assert await sandbox.run() == ExitCode.DRAINED
    assert (sandbox.work / "c").read_text() == "old\nnew\n"
    assert {event.data.file_path for event in await sandbox.events("file_edited")} == {"heron.txt", "c"}
    assert await agent.remembers("pelican.txt")
    fork = await left(agent, sandbox)
    assert fork["session_id"] != old["session_id"]
    for name, resume, knows in (("old", old, False), ("new", fork, True)):
        move(sandbox, tmp_path / name)
        agent.begins(Recall(), Say("Well."), resume=resume)
        assert await sandbox.run() == ExitCode.DRAINED
        assert (await sandbox.event("completed")).data.session_id == resume["session_id"]
        assert (await left(agent, sandbox))["session_id"] == resume["session_id"]
        assert await agent.remembers("pelican.txt")
        assert await agent.remembers("heron.txt") is knows


async def test_missing_session_fails_the_attempt_permanently(agent: Adapter, sandbox: Any) -> None:
    """Without the session the agent does not start; the failure names the task and the remedy and is not retried."""
    if agent.kind in {"command", "acp"}:
        return
    subject = f"sandherd.v1.artifact.default.{sandbox.name}.art-gone"
    gone = {"artifact": "art-gone", "subject": subject, "size": 9, "sha256": "0" * 64, "chunks": 1}
    known = {"task": "task-0", "attempt": 1, "sandbox": sandbox.name, "harness": agent.kind, "session_id": "s-1"}
    agent.begins(Say("never"), resume={**known, "transcript": gone})
    assert await sandbox.run() == ExitCode.DRAINED
    failed = (await sandbox.event("failed")).data
    assert failed.error_type == "start"
    assert "the session of task-0" in failed.error
    assert "start again without `resume`" in failed.error
    assert await sandbox.events("turn_started") == []
