"""Uses of the client whose types `make types` checks. Nothing runs this module."""

from collections.abc import AsyncIterator, Generator
from typing import assert_type

from sandherd.client import (
    EventArtifact,
    EventFollower,
    ExecState,
    Execution,
    Herd,
    SandboxView,
    StoredEvent,
    SyncEventFollower,
    SyncExecution,
    SyncHerd,
    SyncReceivedEvent,
    TaskOutcome,
    TaskSpec,
    TaskView,
)
from sandherd.client.events.sequencer import Event


async def asynchronous(herd: Herd, spec: TaskSpec, *, flag: bool) -> None:
    """A sandbox that is waited for is there; without waiting there is none."""
    assert_type(await herd.create(), SandboxView)
    assert_type(await herd.create(wait=True), SandboxView)
    assert_type(await herd.create(wait=flag), SandboxView | None)
    assert_type(await herd.submit(spec), str)
    execution = await herd.exec("sbx-1", ["true"])
    assert_type(execution, Execution)
    assert_type(await execution.wait(), ExecState)
    assert_type(herd.follow(task="task-1"), EventFollower)
    assert_type(herd.events(), AsyncIterator[StoredEvent])


def synchronous(herd: SyncHerd, spec: TaskSpec, *, flag: bool) -> None:
    """The types of the client without asyncio: its iterators are generators."""
    assert_type(herd.create(), SandboxView)
    assert_type(herd.create(wait=flag), SandboxView | None)
    assert_type(herd.submit(spec), str)
    assert_type(herd.wait("task-1"), TaskView)
    assert_type(herd.submit_batch({"task-1": spec}), list[TaskOutcome])
    execution = herd.exec("sbx-1", ["true"])
    assert_type(execution, SyncExecution)
    assert_type(execution.wait(), ExecState)
    assert_type(herd.events(), Generator[StoredEvent])
    assert_type(herd.artifacts(task="task-1"), Generator[EventArtifact])
    with herd.follow(task="task-1") as following:
        assert_type(following, SyncEventFollower)
        assert_type(iter(following), Generator[Event])
    for received in herd.receive("mine"):
        assert_type(received, SyncReceivedEvent)
        assert_type(received.ack(), None)
