"""Fetches the results that the previous attempt stored, and places them beside or in the work tree before the start."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any, Final

from pydantic import ValidationError

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, run_until_first
from sandherd.contracts.attempt_inputs import Previous, StoredSession
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.agent import AgentError
from sandherd_worker.access.archive import unpack_staged
from sandherd_worker.access.artifact_client import ArtifactClient
from sandherd_worker.assignment import Assignment
from sandherd_worker.broker_session import CurrentConnection
from sandherd_worker.worker_exit import StopRequest

PHASE: Final = "previous"
_SESSION: Final = "session.previous"
_UNPACKED_FACTOR: Final = 20
"""The maximum size of an unpacked work tree, as a multiple of the limit of its archive."""

Publish = Callable[[EventData], Awaitable[object]]


async def restore_previous(
    description: Path, assignment: Assignment, line: CurrentConnection, stop: StopRequest, publish: Publish
) -> bool:
    """Fetch and restore the parts of the previous attempt that a file describes, unless the worker must end first.

    Returns whether the work tree was restored. Errors are published, and the attempt continues without the missing
    part. Raises `SpoolError`.
    """
    try:
        previous = Previous.model_validate_json(description.read_bytes())
    except (OSError, ValidationError) as error:
        await publish(
            AgentError(error=f"the previous attempt's description can't be read: {_reason(error)}", phase=PHASE)
        )
        return False
    handover = _Handover(previous, assignment, line, publish)
    await run_until_first(handover.run(), stop.wait(), again_after=SHORT_CLEANUP_SECONDS)
    return handover.restored


def restored_session(assignment: Assignment) -> dict[str, Any] | None:
    """The previous attempt's session for the agent to resume, in the driver's format, if it was restored."""
    transcript = assignment.state_dir / _SESSION
    if assignment.previous_file is None or not transcript.exists():
        return None
    session = Previous.model_validate_json(assignment.previous_file.read_bytes()).session
    return {"session_id": session.session_id, "transcript": str(transcript), "fork": False} if session else None


def extract_work(
    file: IO[bytes],
    work: ArtifactRef,
    assignment: Assignment,
    folder: Path,
    name: str = ".",
    *,
    outward: bool = True,
    keeps: Callable[[str], bool] | None = None,
) -> None:
    """Extract a stored work tree as `name` in a folder.

    `outward`: whether links that lead out of the work tree are extracted. `keeps`: if set, only files for whose paths
    it returns True are extracted. Raises `ContractError`, `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limit = max(work.size, assignment.max_work_bytes) * _UNPACKED_FACTOR
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        unpack_staged(file, descriptor, name, "work", limit, outward=outward, keeps=keeps)
    finally:
        os.close(descriptor)


def copy(file: IO[bytes], path: Path) -> None:
    """Copy the file's content to this path, if it is not empty. Raises `OSError`."""
    content = file.read()
    if content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class _Handover:
    def __init__(self, previous: Previous, assignment: Assignment, line: CurrentConnection, publish: Publish) -> None:
        self._previous, self._assignment, self._publish = previous, assignment, publish
        self._exchange = ArtifactClient(assignment, line)
        self.restored = False
        """Whether the work tree was restored."""

    async def run(self) -> None:
        """Restore each part separately, so that a missing part does not prevent the others."""
        previous, beside = self._previous, self._assignment.previous_dir
        restores = previous.use == "restore"
        if beside is not None:
            await self._part("its description", None, lambda _: _write_description(previous, beside))
            await self._part("its transcript", previous.transcript, lambda file: copy(file, beside / "transcript"))
        if restores:
            await self._session(previous.session)
            extracted = await self._part(
                "its work tree", previous.work, lambda file: self._extract(file, self._assignment.work_dir, ".")
            )
            self.restored = extracted and previous.work is not None
        elif beside is not None:
            await self._part("its work tree", previous.work, lambda file: self._extract(file, beside, "work"))

    async def _session(self, session: StoredSession | None) -> None:
        if session is not None:
            await self._part(
                "its session", session.artifact, lambda file: copy(file, self._assignment.state_dir / _SESSION)
            )

    async def _part(self, part: str, reference: ArtifactRef | None, place: Callable[[IO[bytes]], None]) -> bool:
        try:
            with tempfile.TemporaryFile(dir=self._assignment.state_dir) as file:
                if reference is not None:
                    await self._exchange.fetch(reference, self._previous.sandbox, file)
                    file.seek(0)
                await asyncio.to_thread(place, file)
        except (ContractError, OSError) as error:
            text = f"{part} could not be taken over from attempt {self._previous.attempt}: {_reason(error)}"
            await self._publish(AgentError(error=text, phase=PHASE))
            return False
        return True

    def _extract(self, file: IO[bytes], folder: Path, name: str) -> None:
        if self._previous.work is not None:
            extract_work(file, self._previous.work, self._assignment, folder, name)


def _write_description(previous: Previous, folder: Path) -> None:
    """Write a file for the agent with the number of the previous attempt, and why it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    description = previous.model_dump_json(include={"attempt", "sandbox", "error", "error_type"}, exclude_none=True)
    (folder / "attempt.json").write_text(description)


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors(include_input=False, include_url=False)[0]["msg"])
    return str(error)
