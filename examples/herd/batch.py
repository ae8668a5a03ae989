"""Submit several tasks at once, wait for all of them, and handle errors."""

import asyncio

from sandherd.client import Code, Herd, HerdError, NotReachedError, TaskOutcome, new_task, task_spec


async def submit() -> list[TaskOutcome]:
    """Three tasks with one label."""
    async with Herd.connect() as herd:
        specs = {
            new_task(): task_spec(f"Number {number}", ["echo", str(number)], labels={"example": "batch"})
            for number in range(3)
        }
        return await herd.submit_batch(specs, wait=True)


async def main() -> None:
    """Errors have a code, a message and a remedy."""
    try:
        for outcome in await submit():
            print(outcome.task, outcome.state)
        async with Herd.connect() as herd:
            await herd.task("task-that-does-not-exist")
    except NotReachedError as error:
        print("no broker:", error.line)
        raise
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
        print(error.line)


asyncio.run(main())
