"""A worker that is started before there is anything to do: it loads what it will need and waits, without any work.

It has no identity and no credential. Until somebody writes to the pipe, it waits in the kernel.
"""

import json
import os
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

BEGIN: Final = "begin"
ENVIRONMENT: Final = "environment.json"
_NEEDED: Final = (
    "nats.aio.client",
    "watchfiles",
    "sandherd_worker.life",
    "sandherd_worker.attempt",
    "sandherd_worker.bare",
    "sandherd_worker.previous",
    "sandherd_worker.access.room",
    "sandherd_worker.access.commands",
    "sandherd_worker.access.transfers",
    "sandherd_worker.harnesses.command",
    "sandherd_worker.harnesses.program",
)


class WarmError(Exception):
    """It can't wait, or was not told what to be. The text says why."""


def wait_to_begin(environ: Mapping[str, str]) -> dict[str, str] | None:
    """The environment to live in, once somebody says so; None if the worker is asked to end before. Raises `WarmError`.

    Whoever writes a byte to the pipe has written `environment.json` before: an object of strings.
    """
    state_dir = environ.get("SANDHERD_STATE_DIR")
    if not state_dir:
        raise WarmError("SANDHERD_STATE_DIR is not set; a worker is started by a runtime, which sets it")
    with _listening() as ended:
        for name in _NEEDED:
            import_module(name)
        if not _wait(Path(state_dir) / BEGIN, ended):
            return None
    return {**environ, **read_environment(Path(state_dir) / ENVIRONMENT)}


@contextmanager
def _listening() -> Iterator[int]:
    """A pipe that can be read from once SIGTERM has come.

    A handler that raises could come just before the wait in the kernel, which would then be for ever.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield reader
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(woken)
        os.close(writer)
        os.close(reader)


def _wait(pipe: Path, ended: int) -> bool:
    """Wait for a byte in the pipe; False if the worker is asked to end before. A writer that writes nothing is none."""
    try:
        if not pipe.exists():
            os.mkfifo(pipe, 0o600)
        # Also for writing: so it never looks as if its last writer had gone.
        begin = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        try:
            poll = select.poll()
            poll.register(begin, select.POLLIN)
            poll.register(ended, select.POLLIN)
            if ended in {descriptor for descriptor, _ in poll.poll()}:
                return False
            os.read(begin, 1)  # so that whoever wrote it knows that it was heard
            return True
        finally:
            os.close(begin)
    except OSError as error:
        raise WarmError(f"{pipe}: {error.strerror or error}") from error


def read_environment(path: Path) -> dict[str, str]:
    """The variables that a worker is to live with: an object of strings. Raises `WarmError`."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise WarmError(f"{path} can't be read: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise WarmError(f"{path} is no object of strings")
    return found
