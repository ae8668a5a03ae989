"""Rules for resuming a session: it must be of the same project, and must not be in use unless the task forks it."""

from typing import Final

from sandherd.contracts.errors import Code
from sandherd.contracts.resume import Resume
from sandherd.contracts.states import SANDBOX_ENDING
from spawner.live_state import LiveState
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.spec_resolution import Refusal
from spawner.tasks.agent_events import has_subject_of
from spawner.tasks.task_record import TaskRecord

FIELD: Final = "spec.resume"


async def resume_refusal(live: LiveState, project: str, resume: Resume) -> Refusal | None:
    """Why this session can't be resumed, as far as the records show, or None.

    A task or sandbox without a record has ended long ago. Raises `StoreUnavailableError`.
    """
    task = await live.tasks.load(f"{project}.{resume.task}")
    sandbox = await live.sandboxes.load(f"{project}.{resume.sandbox}")
    return refusal(project, resume, task.record if task else None, sandbox.record if sandbox else None)


def refusal(project: str, resume: Resume, task: TaskRecord | None, sandbox: SandboxRecord | None) -> Refusal | None:
    """Why this session can't be resumed, by the records of its task and its sandbox, or None. Pure."""
    for part in (resume.transcript, resume.work):
        if part is not None and not has_subject_of(part, project, resume.sandbox):
            return Refusal(f"{part.artifact} does not belong to sandbox {resume.sandbox} in project {project}", FIELD)
    if sandbox is not None and sandbox.task != resume.task:
        return Refusal(f"sandbox {resume.sandbox} does not belong to task {resume.task}", FIELD)
    if resume.fork:
        return None
    if task is not None and not task.ended:
        return _in_use(f"{task.task} has not ended")
    lingers = task is not None and task.spec.linger_seconds > 0
    if lingers and sandbox is not None and sandbox.state not in SANDBOX_ENDING:
        return _in_use(f"the agent of {resume.task} still accepts messages in {sandbox.sandbox}")
    return None


def _in_use(reason: str) -> Refusal:
    return Refusal(
        f"{reason}: its session can't continue in two places; fork it, or wait until it has ended", FIELD, Code.CONFLICT
    )
