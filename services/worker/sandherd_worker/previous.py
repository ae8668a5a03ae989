"""What the attempt before has left: fetched, and laid beside the work tree or into it, before the agent starts."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any, Final

from pydantic import ValidationError

from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.agent import AgentError
from sandherd.contracts.offers import KeptSession, Previous
from sandherd_worker.access.pieces import Exchange
from sandherd_worker.assignment import Assignment
from sandherd_worker.laying import lay
from sandherd_worker.line import Line
from sandherd_worker.stopping import Stop
from sandherd_worker.tasks import first_of

PHASE: Final = "previous"
_SESSION: Final = "session.previous"
_SHARE: Final = 20
"""An unpacked work tree may weigh so many times what its archive may."""

Say = Callable[[EventData], Awaitable[object]]


async def take_over(given: Path, who: Assignment, line: Line, stop: Stop, say: Say) -> None:
    """Fetch what the file offers and lay it out, unless the worker has to end first.

    What goes wrong is said, and the attempt goes on without it. Raises `SpoolError`.
    """
    try:
        previous = Previous.model_validate_json(given.read_bytes())
    except (OSError, ValidationError) as error:
        await say(AgentError(error=f"what is told of the attempt before can't be read: {_why(error)}", phase=PHASE))
        return
    await first_of(_Taking(previous, who, line, say).take(), stop.asked())


def restored_session(who: Assignment) -> dict[str, Any] | None:
    """The session that the agent is to go on with, as a driver is told of it, if one was taken over."""
    transcript = who.state_dir / _SESSION
    if who.previous_file is None or not transcript.exists():
        return None
    session = Previous.model_validate_json(who.previous_file.read_bytes()).session
    return {"session_id": session.session_id, "transcript": str(transcript), "fork": False} if session else None


def restores_work(who: Assignment) -> bool:
    """Whether the work tree is that of the attempt before."""
    try:
        previous = Previous.model_validate_json(who.previous_file.read_bytes()) if who.previous_file else None
    except (OSError, ValidationError):  # it was said, when it was taken over
        return False
    return previous is not None and previous.use == "restore" and previous.work is not None


def lay_work(file: IO[bytes], work: ArtifactRef, who: Assignment, folder: Path, name: str = ".") -> None:
    """Lay a work tree that was put by out as this name in a folder. Raises `ContractError`, `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    limit = max(work.size, who.max_work_bytes) * _SHARE
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lay(file, descriptor, name, "work", limit)
    finally:
        os.close(descriptor)


def copy(file: IO[bytes], path: Path) -> None:
    """Write what is in the file to this path; nothing if nothing is. Raises `OSError`."""
    content = file.read()
    if content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class _Taking:
    def __init__(self, previous: Previous, who: Assignment, line: Line, say: Say) -> None:
        self._previous, self._who, self._say = previous, who, say
        self._exchange = Exchange(who, line)

    async def take(self) -> None:
        """Each part for itself, so that one that is missing does not cost the other."""
        previous, beside = self._previous, self._who.previous_dir
        restores = previous.use == "restore"
        if beside is not None:
            await self._part("its story", None, lambda _: _tell(previous, beside))
            await self._part("its transcript", previous.transcript, lambda file: copy(file, beside / "transcript"))
        if restores:
            await self._session(previous.session)
            await self._part("its work tree", previous.work, lambda file: self._lay(file, self._who.work_dir, "."))
        elif beside is not None:
            await self._part("its work tree", previous.work, lambda file: self._lay(file, beside, "work"))

    async def _session(self, session: KeptSession | None) -> None:
        if session is not None:
            await self._part("its session", session.artifact, lambda file: copy(file, self._who.state_dir / _SESSION))

    async def _part(self, what: str, reference: ArtifactRef | None, lay: Callable[[IO[bytes]], None]) -> None:
        try:
            with tempfile.TemporaryFile(dir=self._who.state_dir) as file:
                if reference is not None:
                    await self._exchange.fetch(reference, self._previous.sandbox, file)
                    file.seek(0)
                await asyncio.to_thread(lay, file)
        except (ContractError, OSError) as error:
            text = f"{what} could not be taken over from attempt {self._previous.attempt}: {_why(error)}"
            await self._say(AgentError(error=text, phase=PHASE))

    def _lay(self, file: IO[bytes], folder: Path, name: str) -> None:
        if self._previous.work is not None:
            lay_work(file, self._previous.work, self._who, folder, name)


def _tell(previous: Previous, folder: Path) -> None:
    """For the agent: which attempt it was, and why it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    told = previous.model_dump_json(include={"attempt", "sandbox", "error", "error_type"}, exclude_none=True)
    (folder / "attempt.json").write_text(told)


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors(include_input=False, include_url=False)[0]["msg"])
    return str(error)
