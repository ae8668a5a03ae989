"""Why a request about a sandbox is not forwarded, and errors for workers that do not reply. Pure."""

from typing import Final

from sandherd.contracts.chunks import CHUNK_BYTES
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.names import FLEET
from sandherd.contracts.states import SandboxState
from sandherd.contracts.streams import BY_STREAM
from spawner.sandboxes.sandbox_record import SandboxRecord

MIB: Final = 1024 * 1024
_MAX_TEXT_LENGTH: Final = 2000
_ARTIFACT_DAYS: Final = round(BY_STREAM["ARTIFACTS"].max_age / 86_400)


def project_refusal(project: str) -> Problem | None:
    """The refusal of a request that names all projects instead of one; None if it names one."""
    if project != FLEET:
        return None
    return Problem(
        code=Code.INVALID_FIELD,
        message=f"{FLEET!r} means all projects: name the project of the sandbox",
        field="project",
    )


def unknown(project: str, sandbox: str) -> Problem:
    """The error if there is no record of this sandbox."""
    return Problem(
        code=Code.NOT_FOUND,
        message=f"there is no sandbox {sandbox} in project {project}",
        field="sandbox",
        remedy="list the sandboxes",
    )


def no_owner(project: str, owner: str, artifact: str) -> Problem:
    """The error if there is neither a record of this sandbox or task, nor the artifact."""
    return Problem(
        code=Code.NOT_FOUND,
        message=f"project {project} has no record of {owner}, and no artifact {artifact} of it",
        field="sandbox",
        remedy="the sandbox or task is the second last token of `subject` in the artifact's reference",
    )


def no_artifact(owner: str, artifact: str) -> Problem:
    """The error if the sandbox or task has no chunk of this artifact."""
    return Problem(
        code=Code.NOT_FOUND,
        message=f"{owner} has no artifact {artifact}",
        field="artifact",
        remedy="the chunks of an upload or download are stored for an hour: start it again; artifacts that events "
        f"refer to are stored for at most {_ARTIFACT_DAYS} days",
    )


def no_further_chunk(owner: str, artifact: str, after: int) -> Problem:
    """The error if the artifact has chunks, but none after this sequence."""
    return Problem(
        code=Code.NOT_FOUND,
        message=f"artifact {artifact} of {owner} has no chunk after {after}: all that are stored come before",
        field="after",
        remedy="if some of the reference's `chunks` were not received, they are no longer stored, or not stored yet",
    )


def state_refusal(record: SandboxRecord) -> Problem | None:
    """Why no request can be sent to this sandbox now, or None if its worker can receive requests."""
    why = f" ({record.reason})" if record.reason else ""
    if record.ended:
        return _conflict(f"sandbox {record.sandbox} has ended{why}")
    if record.state is SandboxState.STOPPING:
        return _conflict(f"sandbox {record.sandbox} is ending{why}")
    if record.pause_wanted:
        return _conflict(f"sandbox {record.sandbox} is paused", remedy=f"resume sandbox {record.sandbox}")
    return None


def unanswered(record: SandboxRecord, what: str) -> Problem:
    """The error if the worker did not reply."""
    return Problem(
        code=Code.UNAVAILABLE,
        message=f"the worker of sandbox {record.sandbox} {what} (state {record.state})",
        field="sandbox",
        remedy="repeat the request: nothing is done twice",
    )


def invalid_reply(record: SandboxRecord, what: str) -> Problem:
    """The error if the worker's reply is invalid: repeating the request would not help."""
    return Problem(
        code=Code.REFUSED,
        message=f"the worker of sandbox {record.sandbox} {what}",
        field="sandbox",
        remedy=f"terminate sandbox {record.sandbox}: its worker violates the protocol",
    )


def size_refusal(size: int, cap: int, field: str) -> Problem | None:
    """Why this size is refused, or None."""
    if size <= cap:
        return None
    return Problem(
        code=Code.TOO_LARGE,
        message=f"{field}: {size} bytes; a file or an archive may have at most {cap} ({cap // MIB} MiB)",
        field=field,
        remedy="the herd's setting is max_file_mb (SANDHERD_MAX_FILE_MB)",
    )


def chunk_refusal(index: int, size: int, cap: int) -> Problem | None:
    """The refusal of a chunk with which the file would exceed the cap, or None."""
    return size_refusal(index * CHUNK_BYTES + size, cap, "index" if index * CHUNK_BYTES > cap else "data")


def upload_refusal(project: str, stored: int, limit: int) -> Problem | None:
    """Why no further chunk of a project's uploads is stored, or None: `stored` bytes would exceed the limit."""
    if stored + CHUNK_BYTES <= limit:
        return None
    return Problem(
        code=Code.REFUSED,
        message=f"uploads of project {project} use {stored // MIB} MiB, the maximum is {limit // MIB} MiB",
        field="project",
        remedy="uploads are stored for an hour, for a task as long as its record, and "
        "for a task that is not submitted up to two hours; the herd's setting is "
        "project_uploads_mb (SANDHERD_PROJECT_UPLOADS_MB)",
    )


def from_worker(problem: Problem) -> Problem:
    """A worker's refusal. A sandbox is not trusted: characters that could control a terminal are replaced."""
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
    """The refusal as an exception."""
    return ContractError(problem.code, problem.message, field=problem.field, remedy=problem.remedy)


def _conflict(message: str, remedy: str | None = None) -> Problem:
    return Problem(code=Code.CONFLICT, message=message, field="sandbox", remedy=remedy)


def plain(text: str) -> str:
    """A sandbox's text, truncated, with characters that could control a terminal replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:_MAX_TEXT_LENGTH])
