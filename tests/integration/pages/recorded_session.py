"""A recorded session, published again by a worker and a spawner, so that a page can show it."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sandherd.bus.connection import Bus
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.base import EventData
from sandherd.contracts.events.sandbox import SandboxRequested, SandboxRunning, SandboxTerminated
from sandherd.contracts.events.task import TaskAssigned, TaskRunning, TaskSubmitted
from sandherd.contracts.names import new_uuid
from sandherd.contracts.subjects import OUTPUT, Principal, event_subject
from sandherd.stack.broker import Broker
from tests.recordings.sessions import events

PROJECT: Final = "p1"
SANDBOX: Final = "sbx-recorded"
TASK: Final = "task-recorded"
_AT_ONCE: Final = 200


async def publish_sandbox(broker: Broker, *, text: str, ended: bool = False) -> None:
    """Publish the spawner's events about the task and its sandbox."""
    async with broker.bus(Principal.SPAWNER) as bus:
        await publish_task(bus, TASK, SANDBOX, text=text, ended=ended)


async def publish_task(bus: Bus, task: str, sandbox: str, *, text: str, ended: bool = False) -> None:
    """Publish the spawner's events about any task, over a connection of the spawner."""
    now = datetime.now(UTC) - timedelta(hours=1)
    of_task: list[EventData] = [
        TaskSubmitted(task=text, harness="claude", runtime="process", submitted_by="ada", max_attempts=3),
        TaskAssigned(sandbox=sandbox, waited_ms=3),
        TaskRunning(sandbox=sandbox, started_ms=400),
    ]
    of_sandbox: list[EventData] = [
        SandboxRequested(runtime="process", requested_by="ada"),
        SandboxRunning(runtime="process"),
    ]
    if ended:
        of_sandbox.append(SandboxTerminated(runtime="process", reason="completed", lived_seconds=600))
    for subject, datas in ((task, of_task), (sandbox, of_sandbox)):
        for number, data in enumerate(datas, 1):
            source = f"/sandherd/spawner/{PROJECT}/{subject}"
            await bus.publish_event(
                wrap(data, data.type, source=source, sequence=number, project=PROJECT, subject=subject,
                     time=now, taskid=task, sandboxid=sandbox)
            )  # fmt: skip


class RecordedWorker:
    """Publishes the events of a recording as those of one sandbox, in order, as often as it is requested."""

    def __init__(self, bus: Bus, sandbox: str = SANDBOX) -> None:
        self._bus = bus
        self._sandbox = sandbox
        self.published = 0

    async def replay(self, name: str, *, count: int | None = None) -> None:
        """Publish the events of a recording, repeated up to `count`, as if they happened now."""
        found = [one for one in events(name) if one["type"] != "agent.shutdown"]
        total = len(found) if count is None else count
        start = datetime.now(UTC) - timedelta(seconds=total)
        for first in range(0, total, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, total))
            await asyncio.gather(
                *(
                    self._send(found[number % len(found)], number // len(found), start + timedelta(seconds=number))
                    for number in numbers
                )
            )

    async def publish(self, *datas: EventData) -> None:
        """Publish events that happen now."""
        for data in datas:
            self.published += 1
            source = f"/sandherd/sandbox/{self._sandbox}"
            await self._bus.publish_event(
                wrap(data, data.type, source=source, sequence=self.published, project=PROJECT, subject=self._sandbox,
                     time=datetime.now(UTC), taskid=TASK, sandboxid=self._sandbox)
            )  # fmt: skip

    async def output(self, *texts: str) -> None:
        """Publish terminal output."""
        subject = OUTPUT.fill(project=PROJECT, sandbox=self._sandbox)
        for text in texts:
            await self._bus.publish(subject, text.encode(), msg_id=str(new_uuid()))

    async def _send(self, recorded: dict[str, Any], again: int, at: datetime) -> None:
        self.published += 1
        data = dict(recorded["data"])
        for name in ("tool_use_id", "parent_tool_use_id", "approval_id", "message_id"):
            if again and data.get(name):
                data[name] = f"{data[name]}-{again}"
        document = recorded | {
            "source": f"/sandherd/sandbox/{self._sandbox}", "subject": self._sandbox, "sequence": self.published,
            "project": PROJECT, "taskid": TASK, "sandboxid": self._sandbox, "time": at.isoformat(), "data": data,
        }  # fmt: skip
        document["id"] = str(new_uuid())
        subject = event_subject(PROJECT, self._sandbox, str(recorded["type"]))
        await self._bus.publish_stored(subject, json.dumps(document).encode(), msg_id=document["id"])
