"""Whether a task may go on from the session that it names: all of it has to be its own project's, and at rest."""

from typing import Final

from sandherd.contracts.resume import Resume
from sandherd.contracts.states import SANDBOX_ENDING
from spawner.live import Live
from spawner.resolving import Refusal
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.agents import lies_under
from spawner.tasks.record import TaskRecord

FIELD: Final = "spec.resume"


async def resume_refusal(live: Live, project: str, resume: Resume) -> Refusal | None:
    """Why this session can't be gone on with, by what is known of it here, or None.

    What has been forgotten has long ended. Raises `StoreUnavailableError`.
    """
    task = await live.tasks.load(f"{project}.{resume.task}")
    sandbox = await live.sandboxes.load(f"{project}.{resume.sandbox}")
    return refusal(project, resume, task.record if task else None, sandbox.record if sandbox else None)


def refusal(project: str, resume: Resume, task: TaskRecord | None, sandbox: SandboxRecord | None) -> Refusal | None:
    """The same as a pure decision."""
    for part in (resume.transcript, resume.work):
        if part is not None and not lies_under(part, project, resume.sandbox):
            return Refusal(f"{part.artifact} is not of sandbox {resume.sandbox} in project {project}", FIELD)
    if sandbox is not None and sandbox.task != resume.task:
        return Refusal(f"sandbox {resume.sandbox} is not of task {resume.task}", FIELD)
    if resume.fork:
        return None
    if task is not None and not task.ended:
        return _at_work(f"{task.task} has not ended")
    lingers = task is not None and task.spec.linger_seconds > 0
    if lingers and sandbox is not None and sandbox.state not in SANDBOX_ENDING:
        return _at_work(f"the agent of {resume.task} still takes messages in {sandbox.sandbox}")
    return None


def _at_work(why: str) -> Refusal:
    return Refusal(f"{why}: its session can't go on in two places; fork it, or let it end first", FIELD)
