"""A task, from the command line to its end on the screen; and a message to its receipt."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from sandherd.client.cli import printing
from sandherd.client.cli.colours import Paint
from sandherd.client.cli.leaving import complain
from sandherd.client.cli.making import with_limits
from sandherd.client.cli.options import Format
from sandherd.client.cli.screen import Screen
from sandherd.client.cli.showing import complain_of_gaps
from sandherd.client.cli.telling import shortened
from sandherd.client.errors import refused
from sandherd.client.herd import Herd, new_task
from sandherd.client.resuming import Earlier, going_on
from sandherd.client.sending import Delivery
from sandherd.client.sequencing import Event
from sandherd.client.target import TASK_REFUSED
from sandherd.client.terminal_text import put
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.states import MessageState

DONE: Final = "task.completed"


async def run(
    herd: Herd,
    task: TaskSpec,
    output: Format,
    *,
    follow: bool,
    limits: Mapping[str, float],
    earlier: Earlier | None = None,
) -> int:
    """Submit a task and show what becomes of it. Returns 1 if it does not complete."""
    name = new_task()
    task = await with_limits(herd, await going_on(herd.connection.ask, task, earlier), limits)
    await herd.check(task)
    if follow:
        return await _run_to_the_end(herd, name, task, output)
    await herd.submit(task, task=name)
    if output is Format.JSON:
        printing.document({"task": name})
    else:
        put(name)
    return 0


async def _run_to_the_end(herd: Herd, name: str, task: TaskSpec, output: Format) -> int:
    paint = Paint.for_screen()
    last: Event | None = None
    async with herd.follow(task=name, fresh=True) as following, Screen(herd, output, paint) as screen:
        await herd.submit(task, task=name)
        if output is Format.TABLE:
            put(f"{paint(name, 'bold')}  {shortened(task.text, 80)}", flush=True)
        try:
            async for event in following:
                last = event
                screen.show(event, following.sandboxes)
        except asyncio.CancelledError:
            complain(f"{name} goes on; stop it with `sandherd tasks cancel {name}`")
            raise
    complain_of_gaps(following)
    return _conclude(name, last, sorted(following.sandboxes))


def _conclude(name: str, last: Event | None, sandboxes: Sequence[str]) -> int:
    """The exit status. Raises `HerdError` if the task was not taken."""
    if last is not None and last.type == DONE:
        return 0
    if last is not None and last.type == TASK_REFUSED:
        raise refused(last)
    where = f"sandherd trajectory {sandboxes[-1]}" if sandboxes else f"sandherd events {name}"
    state = last.type.removeprefix("task.") if last is not None else "not known to have ended well"
    complain(f"{name} is {state}; look with `{where}`")
    return 1


def show_delivery(delivery: Delivery, output: Format) -> int:
    """What became of a message. Returns 1 if the agent does not have it."""
    if output is Format.JSON:
        printing.document(
            {
                "message": delivery.message,
                "sandbox": delivery.sandbox,
                "state": delivery.state,
                "delivery_ms": delivery.delivery_ms,
                "reason": delivery.reason,
            }
        )
    elif delivery.state is MessageState.ACKNOWLEDGED:
        took = "" if delivery.delivery_ms is None else f" in {delivery.delivery_ms:.1f} ms"
        put(f"{delivery.message}: delivered{took}, and the agent has it")
    if delivery.state is MessageState.ACKNOWLEDGED:
        return 0
    why = delivery.reason or "nobody took it in time"
    complain(f"{delivery.message} is {delivery.state}: {why}; see `sandherd sandboxes get {delivery.sandbox}`")
    return 1
