"""Ends all sandboxes of a home. It is done before the broker is stopped, so that they can publish their last events."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandherd.contracts.errors import ContractError
from sandherd.settings import load
from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.home import Home
from sandherd.stack.service_processes import find_program
from sandherd.telemetry import logs

_PROGRAM: Final = "spawner-end"
"""The program that ends sandboxes. It is in the spawner's package, because only that knows all runtimes."""
_MARGIN_SECONDS: Final = 60.0
"""Seconds in addition to the stop grace of sandboxes: to start the program on a busy machine, and to kill sandboxes
that do not end."""
_log: Final = logs.get("sandboxes")


def ending_seconds(outer: Mapping[str, str]) -> float:
    """Maximum seconds to end all sandboxes, whatever their number. `outer` is the spawner's environment."""
    try:
        return load(environ=outer).settings.stop_grace + _MARGIN_SECONDS
    except ContractError:
        return _MARGIN_SECONDS  # neither a spawner nor the program starts with such settings


async def end_sandboxes(home: Home, outer: Mapping[str, str]) -> bool:
    """End every sandbox of this home, gracefully and concurrently. Returns whether all have ended.

    Their spawner must have ended: otherwise it would create others in their place.
    """
    has_directories = home.sandboxes.is_dir() and any(home.sandboxes.iterdir())
    if not has_directories and not _may_have_remote_sandboxes(outer):
        return True
    try:
        child = _end_program(home, outer)
    except FileNotFoundError as error:
        _log.error("sandboxes not stopped, program missing", error=str(error))
        return False
    child.start()
    try:
        async with asyncio.timeout(ending_seconds(outer)):
            await child.wait_ended()
    except TimeoutError:
        await child.kill()
    if child.status != 0:
        _log.error("sandboxes may still run", status=child.status, see=str(child.command.log))
    return child.status == 0


def _may_have_remote_sandboxes(outer: Mapping[str, str]) -> bool:
    """Whether there may be sandboxes without files in the home, in an engine or a cloud service."""
    try:
        return load(environ=outer).settings.runtimes_used != {"process"}
    except ContractError:
        return False


def _end_program(home: Home, outer: Mapping[str, str]) -> ChildProcess:
    command = ChildCommand(
        arguments=[find_program(_PROGRAM)],
        log=home.logs / "spawner.log",
        environment={**outer, "SANDHERD_HOME": str(home.path), "SANDHERD_IDENTITY_DIR": str(_identity(home))},
        linked=False,
    )
    return ChildProcess(command)


def _identity(home: Home) -> Path:
    """The directory of the spawner's keys: by the herd's account in it, the program finds sandboxes at providers."""
    from sandherd.bus.identity import HerdIdentity  # only needed with sandboxes at a provider

    return HerdIdentity(home.identity).spawner
