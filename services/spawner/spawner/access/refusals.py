"""Why a question about a sandbox is not handed on, and what its worker's silence means. All pure."""

from typing import Final

from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import INLINE_BYTES
from sandherd.contracts.states import SandboxState
from spawner.sandboxes.record import SandboxRecord

MIB: Final = 1024 * 1024
_LONGEST_TEXT: Final = 2000


def project_refusal(project: str) -> Problem | None:
    """A sandbox is in one project, and the asker has to say in which."""
    if project != FLEET:
        return None
    return Problem(
        code=Code.INVALID_FIELD,
        message=f"{FLEET!r} stands for all projects: name the project of the sandbox",
        field="project",
    )


def unknown(project: str, sandbox: str) -> Problem:
    """No record tells of it."""
    return Problem(
        code=Code.NOT_FOUND,
        message=f"there is no sandbox {sandbox} in project {project}",
        field="sandbox",
        remedy="`sandherd sandboxes list` shows those that there are",
    )


def state_refusal(record: SandboxRecord) -> Problem | None:
    """Why nothing can be asked of this sandbox now, or None if its worker is to be asked."""
    why = f" ({record.reason})" if record.reason else ""
    if record.ended:
        return _conflict(f"sandbox {record.sandbox} has ended{why}")
    if record.state is SandboxState.STOPPING:
        return _conflict(f"sandbox {record.sandbox} is ending{why}")
    if record.pause_wanted:
        return _conflict(f"sandbox {record.sandbox} is paused", f"`sandherd sandboxes resume {record.sandbox}`")
    return None


def unanswered(record: SandboxRecord, what: str) -> Problem:
    """Its worker was asked and said nothing."""
    return Problem(
        code=Code.UNAVAILABLE,
        message=f"the worker of sandbox {record.sandbox} {what} (state {record.state})",
        field="sandbox",
        remedy="ask again: nothing is done twice",
    )


def nonsense(record: SandboxRecord, what: str) -> Problem:
    """Its worker answered what is no answer: asking again would give no other."""
    return Problem(
        code=Code.REFUSED,
        message=f"the worker of sandbox {record.sandbox} {what}",
        field="sandbox",
        remedy="it does not do as a worker does: end the sandbox with `sandherd sandboxes terminate`",
    )


def size_refusal(size: int, cap: int, field: str) -> Problem | None:
    """Why so many bytes are not taken, or None."""
    if size <= cap:
        return None
    return Problem(
        code=Code.TOO_LARGE,
        message=f"{field}: {size} bytes; a file or an archive may have {cap} ({cap // MIB} MiB) at the most",
        field=field,
        remedy="the herd's setting is max_file_mb (SANDHERD_MAX_FILE_MB)",
    )


def piece_refusal(index: int, size: int, cap: int) -> Problem | None:
    """Why a piece is not held: it would stand beyond the cap."""
    return size_refusal(index * INLINE_BYTES + size, cap, "index" if index * INLINE_BYTES > cap else "data")


def from_worker(problem: Problem) -> Problem:
    """A worker's own refusal, as it is. A sandbox is not trusted: what could steer a terminal is taken out."""
    return Problem(
        code=problem.code,
        message=plain(problem.message),
        field=None if problem.field is None else plain(problem.field),
        remedy=None if problem.remedy is None else plain(problem.remedy),
    )


def refuse(problem: Problem | None) -> None:
    """Raise the refusal, if there is one (`ContractError`)."""
    if problem is not None:
        raise error_of(problem)


def error_of(problem: Problem) -> ContractError:
    """The refusal, to be raised."""
    return ContractError(problem.code, problem.message, field=problem.field, remedy=problem.remedy)


def _conflict(message: str, remedy: str | None = None) -> Problem:
    return Problem(code=Code.CONFLICT, message=message, field="sandbox", remedy=remedy)


def plain(text: str) -> str:
    """What a sandbox says, without what could steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:_LONGEST_TEXT])
