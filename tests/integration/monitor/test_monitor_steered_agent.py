"""All interventions with a real agent: a real spawner, its worker, the relay and the monitor."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nats.aio.msg import Msg

from message_relay.main import compose as compose_relay
from monitor.main import compose as compose_monitor
from sandherd.bus.connection import Bus
from sandherd.client.context import Context
from sandherd.client.herd import Herd
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from spawner.main import compose as compose_spawner
from tests.integration.monitor.conftest import NOT_SOON
from tests.integration.spawner.conftest import home
from tests.patience import PATIENCE

__all__ = ["home"]
PROJECT = "p1"
INSTRUCTION = "use the cache"
AGENT: Final = f"""#!/usr/bin/env python3
import json, os, select, signal, sys

signal.signal(signal.SIGINT, lambda *_: None)
events = os.fdopen(int(os.environ["SANDHERD_EVENTS_FD"]), "w")
number = 0


def publish(kind, **data):
    print(json.dumps({{"type": kind, "data": data}}), file=events, flush=True)


def call(command, result):
    global number
    number += 1
    publish("agent.tool_use", tool="Bash", tool_use_id=str(number), input={{"command": command}})
    publish("agent.tool_result", tool_use_id=str(number), result=result, outcome="ok")


while True:
    waits = None if os.path.exists(sys.argv[1]) else 0.05
    if waits:
        call("make build", "nothing to be done")
    if select.select([0], [], [], waits)[0]:
        line = sys.stdin.readline().strip()
        publish("agent.message", content=line, content_length=len(line))
        if line == "{INSTRUCTION}":
            break
call("make build --cache", "built")
call("cat result", "well")
"""
"""The agent repeats one call, whatever the monitor writes, and obeys a user. If its argument's file exists it waits."""


class Events:
    """All events of the project, as they are published."""

    def __init__(self) -> None:
        self._found: list[dict[str, Any]] = []
        self._changed = asyncio.Event()

    async def listen(self, bus: Bus) -> None:
        await bus.client.subscribe(f"sandherd.v1.event.{PROJECT}.>", cb=self._on_event)
        await bus.client.flush()

    async def _on_event(self, msg: Msg) -> None:
        self._found.append(json.loads(msg.data))
        self._changed.set()

    def of(self, event_type: str) -> list[dict[str, Any]]:
        """The contents of the events of a type."""
        return [event["data"] | {"sandbox": event["subject"]} for event in self._found if event["type"] == event_type]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


async def test_looping_agent_is_nudged_interrupted_paused_and_continued_by_a_user(herd: Broker, home: Path) -> None:
    """Each step follows the ignored step before; the user's decision is executed; each step has its outcome."""
    home.mkdir(parents=True, exist_ok=True)
    hold = home / "hold"
    own: dict[str, Any] = {"home": home, "check_interval": 0.2, "stop_grace": 5, "isolation": "none"}
    spawner = compose_spawner(herd.settings(Principal.SPAWNER, **own, max_attempts=1))
    steering: dict[str, Any] = {"max_intervention": "pause", "steering_cooldown": 0.01}
    monitor = compose_monitor(herd.settings(Principal.MONITOR, **NOT_SOON | steering))
    relay = compose_relay(herd.settings(Principal.MESSAGE_RELAY))
    credentials = herd.credentials(Principal.CLIENT, project=PROJECT)
    context = Context(nats_url=herd.url, credentials=credentials, project=PROJECT, home=home)
    events = Events()
    async with (
        herd.bus(Principal.CLIENT, project=PROJECT) as bus,
        Herd.connect(context) as client,
        spawner.running(),
        relay.running(),
        monitor.running(),
    ):
        await events.listen(bus)
        await client.submit("Build it.", ["python3", "-c", AGENT, str(hold)])
        await events.until(lambda: bool(events.of("sandbox.paused") and events.of("approval.requested")))
        hold.touch()
        [requested] = events.of("approval.requested")
        await client.grant(requested["sandbox"], requested["approval_id"], reason=INSTRUCTION, by="ada")
        await events.until(lambda: len(events.of("monitor.intervention_outcome")) == 3)
        await events.until(lambda: bool(events.of("task.completed")))
    assert [one["step"] for one in events.of("monitor.intervention_decided")] == ["nudge", "interrupt", "pause"]
    outcomes = [one["outcome"] for one in events.of("monitor.intervention_outcome")]
    assert outcomes == ["ignored", "ignored", "obeyed"]
    assert len(events.of("sandbox.resumed")) == 1
    lines = [one["content"] for one in events.of("agent.message")]
    assert len(lines) == 3
    assert lines[-1] == INSTRUCTION
