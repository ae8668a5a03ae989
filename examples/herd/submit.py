"""Submit a task, wait for its end, and read its output and events."""

import asyncio

from sandherd.client import Herd, task_spec


async def main() -> None:
    """Compute something in a sandbox."""
    async with Herd.connect() as herd:
        spec = task_spec("Compute C(50, 25)", ["python3", "-c", "import math; print(math.comb(50, 25))"])
        view = await herd.wait(await herd.submit(spec))
        print(view.task, view.state)
        assert view.sandbox is not None
        async for chunk in herd.output(view.sandbox, follow=True):
            print(chunk.text, end="")
        async for event in herd.events(task=view.task, types=["task"]):
            print(event.envelope["time"], event.envelope["type"])


asyncio.run(main())
