"""Runs broker and database of a home without its services, for a backup or its restoration."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandherd.processes import environment_of
from sandherd.safe_home import check_home
from sandherd.stack.child_process import ChildFailedError
from sandherd.stack.cluster import SIZES, SizeError
from sandherd.stack.control import status
from sandherd.stack.home import Home, read_record
from sandherd.stack.postgres import binaries
from sandherd.stack.stack import Stack
from sandherd.stack.stale_processes import end, end_leftovers
from sandherd.stack.start_failure import StackFailedError
from sandherd.stack.supervisor import RELEASE, AlreadyRunningError, hold_lock


def accepts_size(servers: int) -> bool:
    """Whether a stack can have this number of nats-servers."""
    return servers in SIZES


async def is_running(home: Path) -> bool:
    """Whether any process of the stack of this home runs."""
    stack_status = await status(home)
    return stack_status.supervisor_pid is not None or any(part.running for part in stack_status.parts)


def environment(home: Path) -> dict[str, str] | None:
    """The environment that the running stack of this home was started with; None if no supervisor runs.

    It must not be written to a file, because it may have keys of models. Raises `StackFailedError` if it can't be read.
    """
    record = read_record(Home(home.resolve()))
    if record is None or not record.supervisor.alive:
        return None
    pairs = [os.fsdecode(item).partition("=") for item in environment_of(record.supervisor.pid) if item]
    if not pairs:
        raise StackFailedError(f"the settings of the stack in {home} can't be read: it belongs to another user")
    return {name: value for name, _, value in pairs}


async def release(home: Path) -> None:
    """End the stack of this home, and leave its sandboxes running.

    Does nothing without a supervisor: `stores` ends processes that a killed supervisor has left.
    """
    record = read_record(Home(home.resolve()))
    if record and record.supervisor.alive:
        await end(record.supervisor, RELEASE, grace=record.stop_seconds)


def postgres_program(name: str) -> str:
    """The path of a program of Postgres, such as `pg_dump`. It has the version of the stack's server."""
    return str(binaries() / name)


@asynccontextmanager
async def stores(home: Path, servers: int | None = None) -> AsyncIterator[Stack]:
    """Run broker and database until the block ends. Raises `StackFailedError`, also if the stack is running.

    `servers` is the number of nats-servers, by default that of the existing herd, or one. Raises `UnsafeHomeError`
    before it writes.
    """
    check_home(home)
    layout = Home(home.resolve())
    layout.make()
    try:
        with hold_lock(layout):
            await end_leftovers(layout)
            stack = Stack(layout.path, servers=servers)
            try:
                await stack.start_stores()
                yield stack
            finally:
                await stack.stop(sandboxes=False)
    except (AlreadyRunningError, ChildFailedError, SizeError) as error:
        raise StackFailedError(str(error)) from error
