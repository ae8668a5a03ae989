"""The life of a worker: it opens the spool, joins the herd, does its work or makes up for a lost one, and drains."""

import asyncio
import signal
from collections.abc import Callable
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from sandherd.contracts.commands import SandboxSpec, TaskSpec
from sandherd_worker.agents import secrets
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.exits import ExitCode
from sandherd_worker.families import Families
from sandherd_worker.inbox import Inbox
from sandherd_worker.injected import Injected
from sandherd_worker.line import Line
from sandherd_worker.link import Link
from sandherd_worker.membership import forget_key
from sandherd_worker.parts import Parts
from sandherd_worker.processes import Reaper
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool
from sandherd_worker.stopping import SPOOL, Stop
from sandherd_worker.tasks import end_tasks
from sandherd_worker.uplink import Uplink

if TYPE_CHECKING:
    from sandherd_worker.access.room import Room
    from sandherd_worker.attempt import Attempt
    from sandherd_worker.bare import Bare


async def live(who: Assignment, spec: SandboxSpec | None) -> ExitCode:
    """Live, and return the exit status. Without a spec, and after an earlier life, it recovers. Raises `SpoolError`."""
    spool = Spool.open(who.state_dir / "spool", limit=who.spool_limit)
    parts = _parts(who, spec, spool)
    spool.listen(lambda: parts.stop.ask(SPOOL) if spool.trouble else None)
    _listen(parts.stop, parts.reaper)
    try:
        if spec is None or spool.sequence > 0:
            return await _recover(parts, lost=spec is None)
        return await _work(parts, spec)
    finally:
        await spool.close()
        parts.reaper.stop()
        _listen_no_more()


def _parts(who: Assignment, spec: SandboxSpec | None, spool: Spool) -> Parts:
    key = token_urlsafe(32) if spec is not None and spec.agent_server is not None else ""
    known = [*(secrets(spec) if spec else ()), *([key] if key else ())]
    emitter = Emitter(spool, who, Redactor(known))
    inbox = Inbox(who, emitter, Injected(who.state_dir / "injected"))
    return Parts(
        who=who,
        spool=spool,
        emitter=emitter,
        inbox=inbox,
        line=Line(),
        reaper=Reaper(),
        families=Families(),
        stop=Stop(),
        server_key=key,
    )


def _listen_no_more() -> None:
    """All is said: a SIGTERM that comes now must not turn the exit status into that of a worker that was killed."""
    for what in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(what)
        signal.signal(what, signal.SIG_IGN)


def _listen(stop: Stop, reaper: Reaper) -> None:
    loop = asyncio.get_running_loop()
    for what in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(what, stop.terminate)
    reaper.start()


async def _recover(parts: Parts, *, lost: bool) -> ExitCode:
    from sandherd_worker.recovery import recover

    if lost:
        forget_key(parts.who.state_dir)
    parts.inbox.close("the agent is gone")
    link = Link(parts.who, parts.spool, parts.stop, [parts.inbox.serve], parts.line)
    try:
        await recover(parts.who, parts.spool, parts.emitter, parts.stop)
        return await link.drain()
    finally:
        await link.close()


async def _work(parts: Parts, spec: SandboxSpec) -> ExitCode:
    """Join, and meanwhile load and lay out what the work needs; begin when there is leave to."""
    from sandherd_worker.access.room import Room

    room = Room(parts, spec)
    link = Link(parts.who, parts.spool, parts.stop, [parts.inbox.serve, room.serve], parts.line)
    making = asyncio.create_task(_prepare(parts, spec, link, room))
    try:
        if not await link.admitted():
            return ExitCode.NOT_STARTED
        await (await making).run()
        return await link.drain()
    finally:
        await end_tasks([making])
        await room.close()
        await link.close()


async def _prepare(parts: Parts, spec: SandboxSpec, link: Link, room: "Room") -> "Attempt | Bare":
    """Load what the work needs, beside the loop that joins, and lay it out."""
    load = _load_attempt if isinstance(spec, TaskSpec) else _load_bare
    work = (await asyncio.to_thread(load))(parts, spec, link.uplink, room)
    await work.prepare()
    return work


_Make = Callable[[Parts, Any, Uplink, "Room"], "Attempt | Bare"]


def _load_attempt() -> _Make:
    from sandherd_worker.attempt import Attempt

    return Attempt


def _load_bare() -> _Make:
    from sandherd_worker.bare import Bare

    return Bare
