"""A worker that is started before there is anything to do: it loads what it will need and waits, without any work.

It has no identity and no credential. Until somebody writes to the pipe, it waits in the kernel.
"""

import json
import os
import signal
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

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


class _EndedError(Exception):
    """SIGTERM has come while it waited."""


def wait_to_begin(environ: Mapping[str, str]) -> dict[str, str] | None:
    """The environment to live in, once somebody says so; None if the worker is asked to end before. Raises `WarmError`.

    Whoever writes a byte to the pipe has written `environment.json` before: an object of strings.
    """
    state_dir = environ.get("SANDHERD_STATE_DIR")
    if not state_dir:
        raise WarmError("SANDHERD_STATE_DIR is not set; a worker is started by a runtime, which sets it")
    before = signal.signal(signal.SIGTERM, _end)
    try:
        for name in _NEEDED:
            import_module(name)
        _wait(Path(state_dir) / BEGIN)
    except _EndedError:
        return None
    finally:
        signal.signal(signal.SIGTERM, before)
    return {**environ, **_read(Path(state_dir) / ENVIRONMENT)}


def _end(_number: int, _frame: Any) -> None:
    raise _EndedError


def _wait(pipe: Path) -> None:
    """Wait for a byte. Opening waits for a writer; one that writes nothing is no sign."""
    try:
        if not pipe.exists():
            os.mkfifo(pipe, 0o600)
        while True:
            with pipe.open("rb", buffering=0) as reader:
                if reader.read(1):
                    return
    except OSError as error:
        raise WarmError(f"{pipe}: {error.strerror or error}") from error


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise WarmError(f"{path} can't be read: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise WarmError(f"{path} is no object of strings")
    return found
