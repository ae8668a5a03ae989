"""The process that runs a stack. It starts all parts, restarts parts that end, and ends all in order on SIGTERM.

    python -m sandherd.stack.supervisor HOME [SERVERS]

It holds a lock while it runs, so that each home has at most one supervisor. It records the processes that it starts. If
it is killed, the next supervisor of the home reads this record and ends the processes that are still running.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandherd.contracts.errors import ContractError
from sandherd.private_files import open_log
from sandherd.stack.child_process import ChildFailedError
from sandherd.stack.cluster import SizeError
from sandherd.stack.home import Home, StackPhase, StackRecord, ourselves, running_supervisor, write_record
from sandherd.stack.log_rotation import rotate
from sandherd.stack.stack import Stack
from sandherd.stack.stale_processes import end_leftovers
from sandherd.telemetry import logs

_HOUSEKEEPING_SECONDS: Final = 1.0
_LOCK_SECONDS: Final = 60.0
"""How long a supervisor waits for the lock of a holder that is not recorded: one that is starting, or a backup."""
_POLL_SECONDS: Final = 0.05
RELEASE: Final = signal.SIGUSR1
"""The signal that ends the stack and leaves its sandboxes running: the next stack of this home finds them."""
_RELEASE_ERROR: Final = "stopped for maintenance, such as a backup, while sandboxes kept running"
"""The error in the record of a stack that was ended by `RELEASE`."""
_log: Final = logs.get("supervisor")


class AlreadyRunningError(Exception):
    """Another supervisor runs the stack of this home."""


class Supervisor:
    """Starts, watches and stops one stack."""

    def __init__(self, home: Path, servers: int | None = None) -> None:
        self._home = Home(home.resolve())
        self._servers = servers
        self._own_process = ourselves()
        self._phase = StackPhase.STARTING
        self._error: str | None = "the supervisor failed; see supervisor.log"
        self._last_record: StackRecord | None = None
        self._write_failed = False
        self._context_outdated = False
        self._released = False

    async def run(self) -> int:
        """Run until SIGTERM, SIGINT or `RELEASE`. Returns the exit status. Raises `AlreadyRunningError`."""
        self._home.make()
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                with hold_lock(self._home):
                    return await self._run_locked()
            except AlreadyRunningError:
                # Until the holder is recorded, `sandherd up` would report the end of this process as a failure.
                if running_supervisor(self._home) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_POLL_SECONDS)

    async def _run_locked(self) -> int:
        await end_leftovers(self._home)
        self._stack = Stack(self._home.path, linked=False, servers=self._servers)
        self._stack.changed = self._on_process_start
        run_task = asyncio.create_task(self._run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, run_task.cancel)
        asyncio.get_running_loop().add_signal_handler(RELEASE, self._release, run_task)
        try:
            return await self._wait_for_end(run_task)
        finally:
            await self._stop()

    async def _run(self) -> None:
        self._write_record()
        await self._stack.start()
        self._enter(StackPhase.READY)
        while True:
            await self._stack.run_for(_HOUSEKEEPING_SECONDS)
            self._maintain_files()

    def _maintain_files(self) -> None:
        """Update the record of processes and the context for clients, restore deleted files, and rotate logs."""
        try:
            if self._write_record() or self._context_outdated:
                self._context_outdated = True
                self._stack.write_context()
                self._context_outdated = False
            if repaired := self._stack.repair_files():
                _log.warning("deleted files of the stack restored", missing=", ".join(repaired))
            rotate(self._home.logs)
        except (OSError, ValueError) as error:
            # A full disk or a damaged file must not end the stack. The next interval tries again.
            _log.warning("stack housekeeping failed, retrying", error=str(error))

    async def _wait_for_end(self, run_task: "asyncio.Task[None]") -> int:
        try:
            await run_task
        except asyncio.CancelledError:
            self._error = _RELEASE_ERROR if self._released else None
            return 0
        except (ChildFailedError, ContractError, OSError) as error:
            self._error = str(error)
            _log.error("stack ended by an error", error=self._error)
        return 1

    def _release(self, run_task: "asyncio.Task[None]") -> None:
        self._released = True
        run_task.cancel()

    async def _stop(self) -> None:
        """End everything that was started, in order. Sandboxes keep running after an error and after `RELEASE`."""
        self._enter(StackPhase.STOPPING)
        if not await self._stack.stop(sandboxes=self._error is None):
            self._error = "sandboxes may still run; see spawner.log"
        self._enter(StackPhase.FAILED if self._error else StackPhase.STOPPED)

    def _enter(self, phase: StackPhase) -> None:
        self._phase = phase
        _log.info("stack phase changed", phase=phase, home=str(self._home.path))
        self._write_record()

    def _on_process_start(self) -> None:
        self._write_record()

    def _write_record(self) -> bool:
        """Write the record of the stack if it has changed. Returns whether it was written."""
        record = StackRecord(
            phase=self._phase,
            supervisor=self._own_process,
            processes=self._stack.processes(),
            nats_url=self._stack.broker.url if self._phase is StackPhase.READY else None,
            database_url=self._stack.database_url,
            error=self._error if self._phase in {StackPhase.STOPPING, StackPhase.FAILED} else None,
            stop_seconds=self._stack.stop_seconds,
        )
        if record == self._last_record:
            return False
        try:
            write_record(self._home, record)
        except OSError as error:
            # A full disk must not end the stack. `_maintain_files` tries again.
            if not self._write_failed:
                _log.error("stack state not written", error=str(error))
            self._write_failed = True
            return False
        self._last_record, self._write_failed = record, False
        return True


@contextlib.contextmanager
def hold_lock(home: Home) -> Iterator[None]:
    """Hold the lock of a home until the block ends. Raises `AlreadyRunningError` if another process holds it."""
    descriptor = open_log(home.lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyRunningError(f"a stack is running in {home.path} already") from None
    try:
        yield
    finally:
        os.close(descriptor)


def main(arguments: list[str] | None = None) -> int:
    """Run the supervisor. Returns the exit status."""
    home, *servers = sys.argv[1:] if arguments is None else arguments
    logs.configure("supervisor", "info")
    try:
        return asyncio.run(Supervisor(Path(home), *map(int, servers)).run())
    except (AlreadyRunningError, SizeError, OSError) as error:
        _log.error("stack not started", error=str(error))
        return 3


if __name__ == "__main__":
    sys.exit(main())
