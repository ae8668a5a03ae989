"""The process that holds a stack: it starts everything, keeps it alive, and ends it in order on SIGTERM.

    python -m sandherd.stack.supervisor HOME [SERVERS]

It holds a lock for as long as it lives, so that there is one for each home; and it writes down what it started, so
that the next one can end what a killed one left behind.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandherd.contracts.errors import ContractError
from sandherd.private_files import open_log
from sandherd.stack.child import ChildFailedError
from sandherd.stack.cluster import SizeError
from sandherd.stack.home import Home, Phase, StackRecord, ourselves, write_record
from sandherd.stack.leftovers import end_leftovers
from sandherd.stack.rotation import rotate
from sandherd.stack.stack import Stack
from sandherd.telemetry import logs

_HOUSEKEEPING_SECONDS: Final = 1.0
_log: Final = logs.get("supervisor")


class AlreadyRunningError(Exception):
    """Another supervisor holds this home."""


class Supervisor:
    """One stack, from its first process to its last."""

    def __init__(self, home: Path, servers: int | None = None) -> None:
        self._home = Home(home.resolve())
        self._servers = servers
        self._us = ourselves()
        self._phase = Phase.STARTING
        self._error: str | None = "ended by an error of its own; see supervisor.log"
        self._written: StackRecord | None = None
        self._unwritten = False
        self._untold = False

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT; the exit status. Raises `AlreadyRunningError`."""
        self._home.make()
        with _locked(self._home):
            await end_leftovers(self._home)
            self._stack = Stack(self._home.path, linked=False, servers=self._servers)
            self._stack.changed = self._note
            running = asyncio.create_task(self._hold())
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, running.cancel)
            try:
                return await self._end_of(running)
            finally:
                await self._wind_up()

    async def _hold(self) -> None:
        self._write_down()
        await self._stack.start()
        self._enter(Phase.READY)
        while True:
            await self._stack.hold(_HOUSEKEEPING_SECONDS)
            self._keep_files()

    def _keep_files(self) -> None:
        """Tell clients where a service is that was started again, and keep logs short."""
        try:
            if self._write_down() or self._untold:
                self._untold = True
                self._stack.write_context()
                self._untold = False
            rotate(self._home.logs)
        except OSError as error:
            # Done again with the next look: a full disk must not end the stack.
            _log.warning("housekeeping failed", error=str(error))

    async def _end_of(self, running: "asyncio.Task[None]") -> int:
        try:
            await running
        except asyncio.CancelledError:
            self._error = None
            return 0
        except (ChildFailedError, ContractError, OSError) as error:
            self._error = str(error)
            _log.error("could not start", error=self._error)
        return 1

    async def _wind_up(self) -> None:
        """End what was started; in order also the sandboxes, which live on if it was an error that ended us."""
        self._enter(Phase.STOPPING)
        if not await self._stack.stop(sandboxes=self._error is None):
            self._error = "sandboxes may still run; see spawner.log"
        self._enter(Phase.FAILED if self._error else Phase.STOPPED)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        _log.info("phase", phase=phase, home=str(self._home.path))
        self._write_down()

    def _note(self) -> None:
        self._write_down()

    def _write_down(self) -> bool:
        """Write down what runs. True if it was other than what is written."""
        record = StackRecord(
            phase=self._phase,
            supervisor=self._us,
            processes=self._stack.processes(),
            nats_url=self._stack.broker.url if self._phase is Phase.READY else None,
            database_url=self._stack.database_url,
            error=self._error if self._phase in {Phase.STOPPING, Phase.FAILED} else None,
            stop_seconds=self._stack.stop_seconds,
        )
        if record == self._written:
            return False
        try:
            write_record(self._home, record)
        except OSError as error:
            # A full disk must not end the stack: it is written again as soon as there is room.
            if not self._unwritten:
                _log.error("the state of the stack can't be written", error=str(error))
            self._unwritten = True
            return False
        self._written, self._unwritten = record, False
        return True


@contextlib.contextmanager
def _locked(home: Home) -> Iterator[None]:
    descriptor = open_log(home.lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyRunningError(f"a stack runs in {home.path} already") from None
    try:
        yield
    finally:
        os.close(descriptor)


def main(arguments: list[str] | None = None) -> int:
    """The program; its exit status."""
    home, *servers = sys.argv[1:] if arguments is None else arguments
    logs.configure("supervisor", "info")
    try:
        return asyncio.run(Supervisor(Path(home), *map(int, servers)).run())
    except (AlreadyRunningError, SizeError) as error:
        _log.error("the stack can't go on", error=str(error))
        return 3


if __name__ == "__main__":
    sys.exit(main())
