"""Resumes from an earlier task: its agent's session, and its work tree."""

import asyncio
import tempfile
from collections.abc import Callable
from typing import IO, Any, Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, run_until_first
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.repositories import Repository
from sandherd.contracts.resume import Resume
from sandherd.contracts.specs import TaskSpec
from sandherd_worker.access.archive import write_files
from sandherd_worker.access.artifact_client import ArtifactClient
from sandherd_worker.assignment import Assignment
from sandherd_worker.broker_session import CurrentConnection
from sandherd_worker.harnesses.base import AgentEnd
from sandherd_worker.ignored_inputs import missing_ignored_inputs
from sandherd_worker.previous_attempt import (
    Publish,
    copy,
    extract_work,
    restore_previous,
    restored_session,
)
from sandherd_worker.repository.checkout import CheckoutError, check_out
from sandherd_worker.repository.commit_identity import identity_of
from sandherd_worker.task_inputs import NoInputError, place_inputs
from sandherd_worker.worker_exit import StopRequest
from sandherd_worker.worker_resources import WorkerResources

_SESSION: Final = "session.resumed"
_EXPIRED_REMEDY: Final = "it is stored for some days only: start again without `resume`"
_NEW_START_REMEDY: Final = "start again without `resume`"


class NothingToResumeError(Exception):
    """The earlier task can't be resumed. The text gives cause and remedy.

    `is_temporary`: whether another attempt may succeed.
    """

    def __init__(self, resume: Resume, part: str, why: ContractError | OSError) -> None:
        problem = why.problem if isinstance(why, ContractError) else None
        self.is_temporary = problem is None or problem.code is Code.UNAVAILABLE
        remedy = (
            _EXPIRED_REMEDY
            if problem and problem.code is Code.NOT_FOUND
            else (problem and problem.remedy) or _NEW_START_REMEDY
        )
        super().__init__(f"{part} of {resume.task} in {resume.sandbox} can't be resumed: {why}; {remedy}")


class NoWorkError(Exception):
    """The files that the task begins with can't be unpacked. `is_temporary`: whether another attempt may succeed."""

    def __init__(self, why: ContractError) -> None:
        self.is_temporary = why.problem.code is Code.UNAVAILABLE
        super().__init__(f"can't unpack the files that the task begins with: {why}")


async def inherit(spec: TaskSpec, resources: WorkerResources, publish: Publish) -> AgentEnd | None:
    """Restore the files and the session of the previous attempt or an earlier task, and unpack the task's own files.

    A repository's branch is checked out first. The task's `files` overwrite all others. If the work tree of the
    previous attempt was restored, only files that git ignores are added, because they were not stored. If it can't be
    restored, the attempt begins like a first attempt.

    Returns the attempt's end if something can't be restored. Raises `SpoolError`.
    """
    assignment, restored = resources.assignment, False
    if assignment.previous_file is not None:
        restored = await restore_previous(assignment.previous_file, assignment, resources.line, resources.stop, publish)
    try:
        if spec.repository is not None:
            restored = await _check_out(spec, spec.repository, resources, publish, restored=restored)
        await _place(spec, resources, restored=restored)
        if _begins_with_files(spec) and not restored:
            await asyncio.to_thread(write_files, spec, assignment.work_dir)
    except (CheckoutError, NothingToResumeError, NoWorkError, NoInputError) as error:
        return AgentEnd(error_type="internal" if error.is_temporary else "start", error=str(error))
    except (OSError, ContractError) as error:
        return AgentEnd(error_type="start", error=f"can't write the task's files to the work tree: {error}")
    return None


def _begins_with_files(spec: TaskSpec) -> bool:
    """Whether files were added to the work tree after the task's `files` were first written."""
    return bool(spec.repository or spec.work or spec.inputs or (spec.resume and spec.resume.work))


async def _place(spec: TaskSpec, resources: WorkerResources, *, restored: bool) -> None:
    """Place the results of earlier tasks and the uploaded files in the work tree."""
    assignment, line, stop = resources.assignment, resources.line, resources.stop
    if spec.resume is not None:
        await resume_session(spec.resume, assignment, line, stop, restored=restored)
    if spec.work is not None:
        await run_until_first(_unpack_work(spec.work, assignment, line, restored=restored), stop.wait())
    if spec.inputs:
        await run_until_first(place_inputs(spec.inputs, assignment, line, restored=restored), stop.wait())


async def _check_out(
    spec: TaskSpec, repository: Repository, resources: WorkerResources, publish: Publish, *, restored: bool
) -> bool:
    """Check the branch out, unless the worker must end first. Returns whether a restored work tree is still in use.

    Raises `CheckoutError`, `OSError`.
    """
    is_restored = False

    async def run() -> None:
        nonlocal is_restored
        is_restored = await check_out(repository, identity_of(spec), resources, publish, restored=restored)

    await run_until_first(run(), resources.stop.wait(), again_after=SHORT_CLEANUP_SECONDS)
    return is_restored


async def _unpack_work(work: ArtifactRef, assignment: Assignment, line: CurrentConnection, *, restored: bool) -> None:
    """Fetch the files that the task begins with, and unpack them into the work tree. Raises `NoWorkError`, `OSError`.

    In a restored work tree, only files that git ignores are added, if they are missing.

    The archive is not trusted: if an entry is outside the work tree, the archive is refused. Links that lead out are
    left out, and nothing is written through a link.
    """
    try:
        with tempfile.TemporaryFile(dir=assignment.state_dir) as file:
            await ArtifactClient(assignment, line).fetch(work, assignment.task or "", file)
            file.seek(0)
            keeps = await asyncio.to_thread(missing_ignored_inputs, assignment.work_dir) if restored else None
            await asyncio.to_thread(
                extract_work, file, work, assignment, assignment.work_dir, outward=False, keeps=keeps
            )
    except ContractError as error:
        raise NoWorkError(error) from None


async def resume_session(
    resume: Resume, assignment: Assignment, line: CurrentConnection, stop: StopRequest, *, restored: bool
) -> None:
    """Fetch and restore the session and work tree that `resume` names, unless the worker must end first.

    A session or a work tree that was restored from the previous attempt is not replaced. Raises `NothingToResumeError`.
    """
    restoration = _Restoration(resume, assignment, line, restored=restored)
    await run_until_first(restoration.run(), stop.wait(), again_after=SHORT_CLEANUP_SECONDS)


def resume_of(assignment: Assignment, resume: Resume | None) -> dict[str, Any] | None:
    """The session for the agent to resume, as a driver gets it: the previous attempt's, else the earlier task's."""
    restored = restored_session(assignment)
    if restored is not None or resume is None:
        return restored
    transcript = "" if resume.transcript is None else str(assignment.state_dir / _SESSION)
    return {"session_id": resume.session_id, "transcript": transcript, "fork": resume.fork}


class _Restoration:
    def __init__(self, resume: Resume, assignment: Assignment, line: CurrentConnection, *, restored: bool) -> None:
        self._resume, self._assignment, self._restored = resume, assignment, restored
        self._exchange = ArtifactClient(assignment, line)

    async def run(self) -> None:
        session, work, assignment = self._resume.transcript, self._resume.work, self._assignment
        if session is not None and restored_session(assignment) is None:
            await self._part("the session", session, lambda file: copy(file, assignment.state_dir / _SESSION))
        if work is not None and not self._restored:
            await self._part(
                "the work tree", work, lambda file: extract_work(file, work, assignment, assignment.work_dir)
            )

    async def _part(self, part: str, reference: ArtifactRef, write: Callable[[IO[bytes]], None]) -> None:
        try:
            with tempfile.TemporaryFile(dir=self._assignment.state_dir) as file:
                await self._exchange.fetch(reference, self._resume.sandbox, file)
                file.seek(0)
                await asyncio.to_thread(write, file)
        except (ContractError, OSError) as error:
            raise NothingToResumeError(self._resume, part, error) from None
