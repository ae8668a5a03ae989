"""Starts, ends and inspects a stack from another process, for `sandherd up`, `down` and `status`."""

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandherd.bus.storage_causes import measure_home, shortages
from sandherd.lost_identity import lost_identity
from sandherd.progress_steps import OnStep, ignore_step
from sandherd.safe_home import check_home
from sandherd.settings import CONFIG_VARIABLE
from sandherd.stack.cluster import SizeError, size_for
from sandherd.stack.disk_space import SPACE_REMEDY, missing_space, refused_for_space
from sandherd.stack.home import (
    STOP_SECONDS,
    Home,
    ProcessRecord,
    StackPhase,
    delete_config,
    read_context,
    read_record,
    recorded_config,
    running_supervisor,
)
from sandherd.stack.stale_processes import end, end_with_sandboxes
from sandherd.stack.start_failure import StackFailedError, refuse_lost_identity, why_ended
from sandherd.stack.status import PartStatus, read_status
from sandherd.stack.supervisor_process import start_supervisor

_POLL_SECONDS: Final = 0.03


class DiskTooSmallError(StackFailedError):
    """A file system of the home has too little space; the message states how much is needed."""

    remedy = SPACE_REMEDY


class OtherSizeError(StackFailedError):
    """The herd of this home was created with another number of nats-servers."""

    remedy = "omit --nats, or create a herd of another size in another home (`sandherd --home`)"


@dataclass(frozen=True, kw_only=True)
class StackStatus:
    """The state of a stack. `phase` depends on the actual state of its parts, not only on the record."""

    home: Path
    phase: StackPhase
    supervisor_pid: int | None = None
    nats_url: str | None = None
    database_url: str | None = None
    api_url: str | None = None
    parts: tuple[PartStatus, ...] = ()
    error: str | None = None
    lost: str | None = None
    """A description of missing files of the home without which the stack can't be started again, or None."""

    @property
    def ready(self) -> bool:
        """Whether the whole stack is running and ready."""
        return self.phase is StackPhase.READY and self.lost is None and all(part.ready for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class ShutdownResult:
    """The result of `down`. `names` are the parts that it ended."""

    home: Path
    names: tuple[str, ...] = field(default=())
    sandboxes_left: bool = False
    """Whether a sandbox could not be ended completely. The spawner's log has the reason."""

    @property
    def was_running(self) -> bool:
        """Whether any part was running."""
        return bool(self.names)


async def up(
    home: Path,
    *,
    wait: bool = True,
    seconds: float = 300,
    config: Path | None = None,
    nats: int | None = None,
    environ: Mapping[str, str] | None = None,
    on_step: OnStep = ignore_step,
) -> StackStatus:
    """Start the stack of this home unless it is running. With `wait`, return when every part is ready.

    `config` is the settings file of all parts, by default the file in `SANDHERD_CONFIG`, or the file of the last stack
    if that was not ended by `down`.

    `nats` is the number of nats-servers, 1 or 3, by default that of the existing herd, or 1.

    `environ` is the environment of the stack, by default that of this process.

    `on_step` is called with the parts that are being started, and then with those that are not ready yet.

    The stack continues to run when the caller ends. Raises `StackFailedError`, and `UnsafeHomeError` before it writes.
    """
    check_home(home)
    layout = Home(home.resolve())
    refuse_lost_identity(layout.path)
    try:
        servers = size_for(layout.path, nats)
    except SizeError as error:
        raise OtherSizeError(str(error)) from None
    supervisor = running_supervisor(layout)
    if supervisor is None:
        _refuse_without_space(layout, servers)
        supervisor = start_supervisor(layout, servers, _environment(layout, config, environ))
    elif wait and (problems := shortages(measure_home(layout.path))):
        raise DiskTooSmallError("; ".join(problems))
    if not wait:
        return await status(home)
    try:
        async with asyncio.timeout(seconds):
            await _wait_until_started(layout, supervisor, servers, on_step)
            return await _wait_until_ready(layout, on_step)
    except TimeoutError:
        details = "\n".join(f"{part.name}: {part.detail}" for part in (await status(home)).parts if not part.ready)
        raise StackFailedError(f"not ready after {seconds:g} s\n{details}\nThe logs are in {layout.logs}.") from None


async def down(home: Path, *, seconds: float | None = None, on_step: OnStep = ignore_step) -> ShutdownResult:
    """End the stack of this home with its sandboxes, and processes that a killed supervisor has left.

    `seconds` is the maximum time that the supervisor may take, by default the time in its record. Raises
    `UnsafeHomeError`, because in an unsafe home another user could have recorded the processes to be ended.
    """
    check_home(home)
    layout = Home(home.resolve())
    record, supervisor = read_record(layout), running_supervisor(layout)
    names = tuple(name for name, process in (record.processes if record else {}).items() if process.alive)
    if supervisor is not None:
        on_step(f"stopping {', '.join(reversed(names))}")
        stop_seconds = record.stop_seconds if record else STOP_SECONDS
        await end(supervisor, signal.SIGTERM, grace=stop_seconds if seconds is None else seconds)
    on_step("ending sandboxes that are left")
    all_ended = await end_with_sandboxes(layout, _environment(layout))
    if all_ended:
        delete_config(layout)
    return ShutdownResult(
        home=layout.path, names=(*names, "supervisor") if supervisor else names, sandboxes_left=not all_ended
    )


async def status(home: Path) -> StackStatus:
    """The state of the stack of this home, by checking each part of it now."""
    layout = Home(home.resolve())
    record = read_record(layout)
    lost = lost_identity(layout.path)
    if record is None:
        return StackStatus(home=layout.path, phase=StackPhase.STOPPED, lost=lost)
    is_supervised = record.supervisor.alive
    parts = await read_status(layout, record)
    return StackStatus(
        home=layout.path,
        phase=phase_of(record.phase, parts, supervised=is_supervised),
        supervisor_pid=record.supervisor.pid if is_supervised else None,
        nats_url=record.nats_url,
        api_url=layout.api_url,
        database_url=record.database_url,
        parts=parts,
        error=record.error,
        lost=lost,
    )


def phase_of(recorded: StackPhase, parts: Iterable[PartStatus], *, supervised: bool) -> StackPhase:
    """The phase of a stack, from the recorded phase, the state of its parts, and whether its supervisor is alive."""
    all_parts = list(parts)
    if not supervised:
        has_processes = any(part.running for part in all_parts)
        stopped_phase = StackPhase.FAILED if recorded is StackPhase.FAILED else StackPhase.STOPPED
        return StackPhase.UNSUPERVISED if has_processes else stopped_phase
    is_unready = recorded is StackPhase.READY and not all(part.ready for part in all_parts)
    return StackPhase.NOT_READY if is_unready else recorded


def _environment(home: Home, config: Path | None = None, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """`environ`, or our own, with an absolute path of the settings file, because the stack runs in its home."""
    variables = os.environ if environ is None else environ
    named_file = variables.get(CONFIG_VARIABLE)
    file = config or (Path(named_file) if named_file else recorded_config(home))
    return dict(variables) | ({CONFIG_VARIABLE: str(file.absolute())} if file else {})


def _refuse_without_space(home: Home, servers: int) -> None:
    """Raise `DiskTooSmallError` if the home has too little space to start a stack."""
    if missing := missing_space(home.path, servers):
        raise DiskTooSmallError(missing)


async def _wait_until_ready(home: Home, on_step: OnStep) -> StackStatus:
    """Wait until every part is ready, and the files for clients exist. The stack restores deleted files itself.

    If the stack was running already, a part may be restarting.
    """
    while True:
        current = await status(home.path)
        if current.ready and _is_complete(home):
            return current
        not_ready = ", ".join(part.name for part in current.parts if not part.ready)
        on_step(f"waiting until ready: {not_ready or 'the files of clients'}")
        await asyncio.sleep(_POLL_SECONDS)


def _is_complete(home: Home) -> bool:
    """Whether clients can find the stack: its context exists, and the credentials that the context names."""
    paths = read_context(home).get("creds")
    return isinstance(paths, dict) and bool(paths) and all(Path(str(path)).exists() for path in paths.values())


async def _wait_until_started(home: Home, supervisor: ProcessRecord, servers: int, on_step: OnStep) -> None:
    while True:
        record = read_record(home)
        if record is not None and record.supervisor.alive:
            # The record may be of another supervisor: if two were started at once, the one without the lock ends.
            supervisor = record.supervisor
            if record.phase is StackPhase.READY:
                return
            started = [name for name, process in record.processes.items() if process.alive]
            on_step(
                f"{', '.join(reversed(started))} started; waiting until ready" if started else "starting the supervisor"
            )
        if not supervisor.alive:
            raise _failure(home, servers)
        await asyncio.sleep(_POLL_SECONDS)


def _failure(home: Home, servers: int) -> StackFailedError:
    """The error that states why the supervisor has ended."""
    reported = why_ended(home)
    space_error = refused_for_space(home.path, servers, reported)
    return DiskTooSmallError(space_error) if space_error else StackFailedError(reported)
