"""The sandboxes of a home, as far as the stack knows of them: they are ended before what they talk to."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandherd.bus.identity.material import Identity
from sandherd.contracts.errors import ContractError
from sandherd.settings import load
from sandherd.stack.child import Child, Command
from sandherd.stack.home import Home
from sandherd.stack.programs import find_program
from sandherd.telemetry import logs

_PROGRAM: Final = "spawner-end"
"""A program of the spawner's package: only that knows how sandboxes are found and ended."""
_MARGIN: Final = 20.0
"""What the program may take beside the sandboxes' grace: to begin, and to end what does not end by itself."""
_log: Final = logs.get("sandboxes")


def ending_seconds(outer: Mapping[str, str]) -> float:
    """How long ending all sandboxes may take, however many there are. `outer` is the spawner's environment."""
    try:
        return load(environ=outer).settings.stop_grace + _MARGIN
    except ContractError:
        return _MARGIN  # no spawner starts with such settings, and neither does the program


async def end_sandboxes(home: Home, outer: Mapping[str, str]) -> bool:
    """End every sandbox of this home, in order and all at once. Returns whether nothing of any is left running.

    Their spawner must have ended, or it would make others in their place.
    """
    here = home.sandboxes.is_dir() and any(home.sandboxes.iterdir())
    if not here and not _elsewhere(outer):
        return True
    try:
        child = _program(home, outer)
    except FileNotFoundError as error:
        _log.error("sandboxes live on", error=str(error))
        return False
    child.start()
    try:
        async with asyncio.timeout(ending_seconds(outer)):
            await child.gone()
    except TimeoutError:
        await child.kill()
    if child.status != 0:
        _log.error("sandboxes may still run", status=child.status, see=str(child.command.log))
    return child.status == 0


def _elsewhere(outer: Mapping[str, str]) -> bool:
    """Whether there may be sandboxes that leave nothing in the home: an engine's, or a provider's."""
    try:
        return load(environ=outer).settings.runtimes_used != {"process"}
    except ContractError:
        return False


def _program(home: Home, outer: Mapping[str, str]) -> Child:
    command = Command(
        arguments=[find_program(_PROGRAM)],
        log=home.logs / "spawner.log",
        environment={**outer, "SANDHERD_HOME": str(home.path), "SANDHERD_IDENTITY_DIR": str(_identity(home))},
        linked=False,
    )
    return Child(command)


def _identity(home: Home) -> Path:
    """Whose sandboxes they are: at a provider they are marked with the herd's account."""
    return Identity(home.path / "identity").spawner
