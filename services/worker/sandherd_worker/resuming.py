"""What an earlier task has left for this one to go on from: its agent's session, and its work tree."""

import asyncio
import tempfile
from collections.abc import Callable
from typing import IO, Any, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.resume import Resume
from sandherd.contracts.specs import TaskSpec
from sandherd_worker.access.pieces import Exchange
from sandherd_worker.agents import put_files
from sandherd_worker.assignment import Assignment
from sandherd_worker.harnesses.base import Ended
from sandherd_worker.line import Line
from sandherd_worker.parts import Parts
from sandherd_worker.previous import Say, copy, lay_work, restored_session, restores_work, take_over
from sandherd_worker.stopping import Stop
from sandherd_worker.tasks import first_of

_SESSION: Final = "session.resumed"
_GONE: Final = "it is kept for some days only: begin anew, without `resume`"
_ANEW: Final = "begin anew, without `resume`"


class NothingToResumeError(Exception):
    """There is nothing to go on from. The text says why, and what helps; it `passes` if another attempt may have it."""

    def __init__(self, resume: Resume, what: str, why: ContractError | OSError) -> None:
        problem = why.problem if isinstance(why, ContractError) else None
        self.passes = problem is None or problem.code is Code.UNAVAILABLE
        remedy = _GONE if problem and problem.code is Code.NOT_FOUND else (problem and problem.remedy) or _ANEW
        super().__init__(f"{what} of {resume.task} in {resume.sandbox} can't be gone on with: {why}; {remedy}")


async def inherit(spec: TaskSpec, parts: Parts, say: Say) -> Ended | None:
    """Take over what the attempt before and an earlier task have left; the task's own files are laid over that.

    Returns the attempt's end if it can't begin so. Raises `SpoolError`.
    """
    who = parts.who
    if who.previous_file is not None:
        await take_over(who.previous_file, who, parts.line, parts.stop, say)
    if spec.resume is None:
        return None
    try:
        await take_up(spec.resume, who, parts.line, parts.stop)
        if spec.resume.work is not None and not restores_work(who):
            await asyncio.to_thread(put_files, spec, who.work_dir)
    except NothingToResumeError as error:
        return Ended(error_type="internal" if error.passes else "start", error=str(error))
    except OSError as error:
        return Ended(error_type="start", error=f"the task's files can't be put into the earlier work tree: {error}")
    return None


async def take_up(resume: Resume, who: Assignment, line: Line, stop: Stop) -> None:
    """Fetch what is named and lay it out, unless the worker has to end first. Raises `NothingToResumeError`.

    A later attempt that restores what the one before has left goes on from that, as far as it left something.
    """
    await first_of(_Taking(resume, who, line).take(), stop.asked())


def resume_of(who: Assignment, resume: Resume | None) -> dict[str, Any] | None:
    """The session that the agent is to go on with, as a driver is told of it: the last attempt's before a task's."""
    restored = restored_session(who)
    if restored is not None or resume is None:
        return restored
    transcript = "" if resume.transcript is None else str(who.state_dir / _SESSION)
    return {"session_id": resume.session_id, "transcript": transcript, "fork": resume.fork}


class _Taking:
    def __init__(self, resume: Resume, who: Assignment, line: Line) -> None:
        self._resume, self._who = resume, who
        self._exchange = Exchange(who, line)

    async def take(self) -> None:
        session, work, who = self._resume.transcript, self._resume.work, self._who
        if session is not None and restored_session(who) is None:
            await self._part("the session", session, lambda file: copy(file, who.state_dir / _SESSION))
        if work is not None and not restores_work(who):
            await self._part("the work tree", work, lambda file: lay_work(file, work, who, who.work_dir))

    async def _part(self, what: str, reference: ArtifactRef, lay: Callable[[IO[bytes]], None]) -> None:
        try:
            with tempfile.TemporaryFile(dir=self._who.state_dir) as file:
                await self._exchange.fetch(reference, self._resume.sandbox, file)
                file.seek(0)
                await asyncio.to_thread(lay, file)
        except (ContractError, OSError) as error:
            raise NothingToResumeError(self._resume, what, error) from None
