"""The life of a worker: it opens the spool, joins the herd, runs the attempt or makes up for a lost one, and drains."""

import asyncio
import signal

from sandherd.contracts.commands import TaskSpec
from sandherd_worker.agents import secrets
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.exits import ExitCode
from sandherd_worker.inbox import Inbox
from sandherd_worker.injected import Injected
from sandherd_worker.link import Link
from sandherd_worker.membership import forget_key
from sandherd_worker.processes import Reaper
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool
from sandherd_worker.stopping import SPOOL, Stop


async def live(who: Assignment, spec: TaskSpec | None) -> ExitCode:
    """Live, and return the exit status. Without a task, and after an earlier life, it recovers. Raises `SpoolError`."""
    spool = Spool.open(who.state_dir / "spool", limit=who.spool_limit)
    stop, reaper = Stop(), Reaper()
    emitter = Emitter(spool, who, Redactor(secrets(spec) if spec else ()))
    inbox = Inbox(who, emitter, Injected(who.state_dir / "injected"))
    spool.listen(lambda: stop.ask(SPOOL) if spool.trouble else None)
    _listen(stop, reaper)
    if spec is None:
        forget_key(who.state_dir)
    link = Link(who, spool, inbox, stop)
    try:
        if spec is None or spool.sequence > 0:
            await _recover(who, spool, emitter, inbox)
        else:
            await _attempt(who, spec, spool=spool, emitter=emitter, inbox=inbox, link=link, reaper=reaper, stop=stop)
        return await link.drain()
    finally:
        await link.close()
        await spool.close()
        reaper.stop()
        _listen_no_more()


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


async def _attempt(
    who: Assignment,
    spec: TaskSpec,
    *,
    spool: Spool,
    emitter: Emitter,
    inbox: Inbox,
    link: Link,
    reaper: Reaper,
    stop: Stop,
) -> None:
    from sandherd_worker.attempt import Attempt

    attempt = Attempt(
        who, spec, spool=spool, emitter=emitter, inbox=inbox, uplink=link.uplink, reaper=reaper, stop=stop
    )
    await attempt.run()


async def _recover(who: Assignment, spool: Spool, emitter: Emitter, inbox: Inbox) -> None:
    from sandherd_worker.recovery import recover

    inbox.close("the agent is gone")
    await recover(who, spool, emitter)
