"""What a caller of the herd may have to deal with: one error, with a code, the field and what to do about it."""

import random
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from pydantic import BaseModel, ValidationError

from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.names import UnsafeNameError, safe_name, safe_sandbox

if TYPE_CHECKING:
    from sandherd.contracts.envelope import Envelope
    from sandherd.contracts.events.lifecycle import SandboxRefused, TaskRejected

ModelT = TypeVar("ModelT", bound=BaseModel)

STATUS_REMEDY: Final = "see what runs with `sandherd status`"
NAME_REMEDY: Final = "copy it from `sandherd tasks list` or `sandherd sandboxes list`"

_BUSY_SECONDS: Final = 0.5
_REFUSED_REMEDIES: Final = {
    "spec.runtime": "name another one with --runtime, as `sandherd runtimes` lists them",
    "spec.image": "leave --image out, or name a runtime of images with --runtime",
    "spec.profile": "name another one with --profile, as `sandherd runtimes` lists them",
    "spec.depends_on": "submit what it waits for first, and name it as `sandherd tasks list` does",
    "spec.resume": "fork it with --fork, or name another task with --resume",
    "spec.secret_env": "retry it with new values: `sandherd tasks retry TASK --secret-env NAME`",
    "spec.secrets": "then give it again",
    "spec.files": "submit it again, under another name",
    "spec.sealed": "submit it again, and update the client if that does not help",
    "task": "submit it under a name of its own",
    "project": "name one with --project",
}


_CREATE: Final = "spawner.create_sandbox"
"""The command after whose refusal there is nothing to look at: `contracts.commands.CreateSandbox`."""


class HerdError(Exception):
    """Something asked of the herd was not done. `problem` says why, in which field, and what helps."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem

    @classmethod
    def of(cls, code: Code, message: str, *, field: str | None = None, remedy: str | None = None) -> Self:
        """An error made here rather than by a service."""
        return cls(Problem(code=code, message=message, field=field, remedy=remedy))

    @property
    def line(self) -> str:
        """The whole of it in one line, as the command shows it."""
        message = " ".join(self.problem.message.split())
        return f"{message}; {self.problem.remedy}" if self.problem.remedy else message


class ServiceAwayError(HerdError):
    """Nobody answered for `service`, or not in time."""

    service: str = ""

    @classmethod
    def named(cls, service: str, what: str) -> Self:
        """The error for one service."""
        error = cls.of(Code.UNAVAILABLE, f"{service} {what}", remedy=STATUS_REMEDY)
        error.service = service
        return error


class NotReachedError(HerdError):
    """The broker itself was not reached, or let nobody in."""


def broken(error: ContractError) -> HerdError:
    """The same refusal, as what a caller expects."""
    return HerdError(error.problem)


def refused(event: "Envelope[TaskRejected]") -> HerdError:
    """Why a task was not taken, from the event that says so."""
    field = event.data.field
    remedy = _REFUSED_REMEDIES.get(field or "", f"change {field or 'it'}, and submit it again")
    return HerdError.of(
        Code.INVALID_FIELD, f"{event.subject} was not taken: {event.data.reason}", field=field, remedy=remedy
    )


def refused_of(event: "Envelope[SandboxRefused] | Envelope[TaskRejected]", command: str) -> HerdError:
    """Why a command was not obeyed, from the event that says so."""
    field = event.data.field or ""
    verb = command.partition(".")[2].partition("_")[0]
    kind = event.type.partition(".")[0]
    look = f"look with `sandherd {'tasks' if kind == 'task' else 'sandboxes'} get {event.subject}`"
    if command == _CREATE:
        look = "use another name, or end one that is not needed; see `sandherd sandboxes list`"
    remedy = look if field in {"", "task", "sandbox"} else _REFUSED_REMEDIES.get(field, f"change {field}")
    code = Code.INVALID_FIELD if field.startswith(("spec.", "seconds")) else Code.CONFLICT
    message = f"{verb} {event.subject} was refused: {event.data.reason}"
    return HerdError.of(code, message, field=event.data.field, remedy=remedy)


def busy_wait(problem: Problem) -> float | None:
    """After how many seconds to ask again what a service was too busy for; None for any other refusal.

    Between one and two times what it asked for, so that those it has refused together do not come back together.
    """
    if problem.code is not Code.BUSY:
        return None
    return (problem.retry_after_seconds or _BUSY_SECONDS) * random.uniform(1, 2)


def checked_name(name: str, field: str) -> str:
    """The name, if it may stand in a subject. Raises `HerdError` (`unsafe_name`) before anything is sent."""
    try:
        return safe_name(name, field)
    except UnsafeNameError as error:
        raise HerdError.of(Code.UNSAFE_NAME, str(error), field=field, remedy=NAME_REMEDY) from None


def new_sandbox_name(name: str) -> str:
    """The name, if a new sandbox may have it. Raises `HerdError` (`unsafe_name`) before anything is sent."""
    try:
        return safe_sandbox(checked_name(name, "sandbox"))
    except UnsafeNameError:
        raise HerdError.of(
            Code.UNSAFE_NAME,
            f"no sandbox can be called {name!r}: its name begins with 'sbx-' and does not end with '-join'",
            field="sandbox",
            remedy="leave the name out, or give another one",
        ) from None


def made(model: type[ModelT], **fields: Any) -> ModelT:
    """One of the contracts' models. Raises `HerdError` naming the field that is wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise broken(ContractError.from_validation(error)) from None
