"""Follow a task from before it is submitted, so that no event is missing."""

import asyncio

from sandherd.client import Herd, new_task, task_spec


async def main() -> None:
    """Print each event when it is published."""
    async with Herd.connect() as herd:
        task = new_task()
        async with herd.follow(task=task, fresh=True) as following:
            await herd.submit(task_spec("Say hello", ["echo", "hello"]), task=task)
            async for event in following:
                print(event.time, event.type, event.subject)
        assert following.is_complete


asyncio.run(main())
