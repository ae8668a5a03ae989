"""Joins history and live without a gap, and folds states: python join.py PROJECT NAME TASK.

Reads the project's history, and then what is published from there on, by the durable subscription NAME, until TASK has
ended. Writes the state of each task and sandbox, and how many events it applied, each once and in its source's order.

NATS_URL              the broker's address
SANDHERD_CREDENTIALS  a subscriber's credential: sandherd credentials create --role subscriber --project PROJECT
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from sandherd.client import Context, Herd
from sandherd.contracts.requests import ListEvents
from sandherd.telemetry import logs

STATES: Final = {
    "task.submitted": "pending",
    "task.assigned": "assigned",
    "task.running": "running",
    "task.retry_scheduled": "pending",
    "task.completed": "completed",
    "task.failed": "failed",
    "task.cancelled": "cancelled",
    "sandbox.requested": "requested",
    "sandbox.running": "running",
    "sandbox.stopping": "stopping",
    "sandbox.terminated": "terminated",
    "sandbox.failed": "failed",
}
ENDS: Final = {"task.completed", "task.failed", "task.cancelled"}


class Fold:
    """The states that follow from the events so far."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.ended: set[str] = set()
        self.applied = 0
        self._next: dict[str, int] = defaultdict(lambda: 1)
        self._early: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Apply an event when those before it of its source are applied; an event that was applied is ignored."""
        source, early = event["source"], self._early[event["source"]]
        if event["sequence"] >= self._next[source]:
            early[event["sequence"]] = event
        while self._next[source] in early:
            self._apply(early.pop(self._next[source]))
            self._next[source] += 1

    def _apply(self, event: Mapping[str, Any]) -> None:
        self.applied += 1
        self.states[event["subject"]] = STATES.get(event["type"], self.states.get(event["subject"], ""))
        if event["type"] in ENDS:
            self.ended.add(event["subject"])
        elif event["type"] == "task.retry_scheduled":
            self.ended.discard(event["subject"])


async def join(project: str, name: str, task: str) -> Fold:
    """The states once the task has ended."""
    fold = Fold()
    async with Herd.connect(Context.resolve(project=project)) as herd:
        # Every event up to this number is in the history that is read next; None: the broker did not reply.
        through = (await herd.connection.request(ListEvents(limit=1))).stored_through
        async for stored in herd.events():
            fold.add(stored.envelope)
        await herd.subscribe(name, start=(through or 0) + 1)
        async with herd.receive(name) as events:
            async for received in events:
                fold.add(received.event.model_dump(mode="json"))
                await received.ack()
                if task in fold.ended:
                    return fold
    return fold


if __name__ == "__main__":
    logs.configure("join", "warning")  # the library logs to standard error
    found = asyncio.run(join(*sys.argv[1:4]))
    for subject, state in sorted(found.states.items()):
        print(subject, state)
    print(f"{found.applied} events", file=sys.stderr)
