"""Starting, ending and looking at a stack from outside: what `sandherd up`, `down` and `status` do."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandherd.private_files import open_log
from sandherd.settings import CONFIG_VARIABLE
from sandherd.stack.cluster import SizeError, size_for
from sandherd.stack.home import (
    STOP_SECONDS,
    Home,
    Phase,
    ProcessRecord,
    forget_config,
    noted_config,
    read_record,
    record_of,
)
from sandherd.stack.leftovers import end, end_with_sandboxes
from sandherd.stack.looking import PartStatus, look_at_all

_POLL: Final = 0.03
_LAST_LINES: Final = 20


class StackFailedError(Exception):
    """The stack did not start; the message says what is wrong and where the logs are, `remedy` what helps."""

    remedy = "end what is left with `sandherd down`, then try again"


class OtherSizeError(StackFailedError):
    """The herd of this home was made with another number of nats-servers."""

    remedy = "leave --nats out, or make a herd of another size in another home (`sandherd --home`)"


@dataclass(frozen=True, kw_only=True)
class StackStatus:
    """A stack as it stands. `phase` is what its parts are found to be, whatever was written down."""

    home: Path
    phase: Phase
    supervisor_pid: int | None = None
    nats_url: str | None = None
    database_url: str | None = None
    parts: tuple[PartStatus, ...] = ()
    error: str | None = None

    @property
    def ready(self) -> bool:
        """Whether all of it runs and says that it is ready."""
        return self.phase is Phase.READY and all(part.ready for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What `down` ended."""

    home: Path
    names: tuple[str, ...] = field(default=())
    sandboxes_left: bool = False
    """Whether something of a sandbox could not be ended; the spawner's log says what."""

    @property
    def was_running(self) -> bool:
        """Whether there was anything to end."""
        return bool(self.names)


async def up(
    home: Path, *, wait: bool = True, seconds: float = 120, config: Path | None = None, nats: int | None = None
) -> StackStatus:
    """Start the stack of this home, or find that it runs; `wait` until every part is ready.

    `config` is the settings file of every part; without it, the one that `SANDHERD_CONFIG` names, or that of a stack
    that was not ended by `down`, if there is one.

    `nats` is how many nats-servers there are to be: 1 or 3; without it as many as there were, and one at first.

    What runs goes on when the caller ends. Raises `StackFailedError`.
    """
    place = Home(home.resolve())
    try:
        servers = size_for(place.path, nats)
    except SizeError as error:
        raise OtherSizeError(str(error)) from None
    supervisor = _running(place)
    if supervisor is None:
        supervisor = _start_supervisor(place, config, servers)
    if not wait:
        return await status(home)
    try:
        async with asyncio.timeout(seconds):
            await _until_started(place, supervisor)
            return await _until_ready(place)
    except TimeoutError:
        says = "\n".join(f"{part.name}: {part.detail}" for part in (await status(home)).parts if not part.ready)
        raise StackFailedError(f"not ready after {seconds:g} s\n{says}\nThe logs are in {place.logs}.") from None


async def down(home: Path, *, seconds: float | None = None) -> Ended:
    """End the stack of this home with its sandboxes, also what a killed supervisor left. Nothing to end is no error.

    `seconds` is how long the supervisor may take; without it, as long as it has written down that it may need.
    """
    place = Home(home.resolve())
    record, supervisor = read_record(place), _running(place)
    names = tuple(name for name, process in (record.processes if record else {}).items() if process.alive)
    if supervisor is not None:
        written = record.stop_seconds if record else STOP_SECONDS
        await end(supervisor, signal.SIGTERM, grace=written if seconds is None else seconds)
    gone = await end_with_sandboxes(place, _surroundings(place))
    if gone:
        forget_config(place)
    return Ended(home=place.path, names=(*names, "supervisor") if supervisor else names, sandboxes_left=not gone)


async def status(home: Path) -> StackStatus:
    """How the stack of this home is, by looking at each part of it now."""
    place = Home(home.resolve())
    record = read_record(place)
    if record is None:
        return StackStatus(home=place.path, phase=Phase.STOPPED)
    supervised = record.supervisor.alive
    parts = await look_at_all(place, record)
    return StackStatus(
        home=place.path,
        phase=phase_of(record.phase, parts, supervised=supervised),
        supervisor_pid=record.supervisor.pid if supervised else None,
        nats_url=record.nats_url,
        database_url=record.database_url,
        parts=parts,
        error=record.error,
    )


def phase_of(written: Phase, parts: Iterable[PartStatus], *, supervised: bool) -> Phase:
    """How far a stack is: by what its supervisor wrote while that lives, and by what its parts are found to be."""
    seen = list(parts)
    if not supervised:
        left = any(part.running for part in seen)
        return Phase.UNSUPERVISED if left else Phase.FAILED if written is Phase.FAILED else Phase.STOPPED
    return Phase.NOT_READY if written is Phase.READY and not all(part.ready for part in seen) else written


def _running(home: Home) -> ProcessRecord | None:
    record = read_record(home)
    return record.supervisor if record and record.supervisor.alive else None


def _surroundings(home: Home, config: Path | None = None) -> dict[str, str]:
    """Our environment, with the settings file as it is found from anywhere: the stack works in its home."""
    named = os.environ.get(CONFIG_VARIABLE)
    found = config or (Path(named) if named else noted_config(home))
    return dict(os.environ) | ({CONFIG_VARIABLE: str(found.absolute())} if found else {})


def _start_supervisor(home: Home, config: Path | None, servers: int) -> ProcessRecord:
    home.make()
    with os.fdopen(open_log(home.logs / "supervisor.log"), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sandherd.stack.supervisor", str(home.path), str(servers)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home.path,
            env=_surroundings(home, config),
            start_new_session=True,
        )
    # It is not waited for: it outlives us.
    process.returncode = 0
    return record_of(process.pid)


async def _until_ready(home: Home) -> StackStatus:
    """A stack that runs already may have a part that is just being started again."""
    while not (standing := await status(home.path)).ready:  # noqa: ASYNC110  # other processes set no event here
        await asyncio.sleep(_POLL)
    return standing


async def _until_started(home: Home, supervisor: ProcessRecord) -> None:
    while True:
        record = read_record(home)
        if record is not None and record.supervisor.alive:
            # It may be another's: of two that were started at once, one finds the lock taken and ends.
            supervisor = record.supervisor
            if record.phase is Phase.READY:
                return
        if not supervisor.alive:
            raise StackFailedError(_why(home))
        await asyncio.sleep(_POLL)


def _why(home: Home) -> str:
    record = read_record(home)
    if record is not None and record.error:
        return f"{record.error}\nThe logs are in {home.logs}."
    log = home.logs / "supervisor.log"
    lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join(["the supervisor has ended:", *lines, f"The logs are in {home.logs}."])
