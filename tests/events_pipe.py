"""The events that a worker publishes for lines on the events pipe."""

import asyncio
from typing import Any

from sandherd_worker.harnesses.event_lines import READ_BYTES, AgentProcess, EventLines


async def published(data: bytes, process: AgentProcess = "agent", turn: int = 1) -> list[Any]:
    """The events for these bytes from the events pipe of this process. No line may be a message to the harness."""
    events: list[Any] = []

    async def publish(event: Any) -> None:
        events.append(event)

    async def handle(_type: str, _data: dict[str, Any]) -> None:
        raise AssertionError("no driver's line")

    reader = asyncio.StreamReader(READ_BYTES)
    reader.feed_data(data)
    reader.feed_eof()
    await EventLines(publish, lambda: turn, handle if process == "driver" else None).read(reader)
    return events
