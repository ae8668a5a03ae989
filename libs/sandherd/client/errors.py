"""The client's errors: `HerdError` has a code, a message, the field and a remedy."""

import random
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from pydantic import BaseModel, ValidationError

from sandherd.client.remedy_commands import with_command
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.names import UnsafeNameError, safe_name, safe_sandbox

if TYPE_CHECKING:
    from sandherd.contracts.envelope import Envelope
    from sandherd.contracts.events.sandbox import SandboxRefused
    from sandherd.contracts.events.task import TaskRejected
    from sandherd.contracts.violations import Violation

ModelT = TypeVar("ModelT", bound=BaseModel)

STATUS_REMEDY: Final = "see what runs with `sandherd status`"
NAME_REMEDY: Final = "copy it from `sandherd tasks list` or `sandherd sandboxes list`"
_REMEDIES: Final = {
    "artifact": "see the existing ones with `sandherd artifacts list`",
    "batch": "copy it from the output of `sandherd tasks submit`",
    "context": "see the existing ones with `sandherd context list`",
    "exec": "copy it from the output of `sandherd exec`",
    "harness": "see the existing ones with `sandherd runtimes`",
    "project": "see the existing ones with `sandherd projects list`",
    "service": "see the existing ones with `sandherd status`",
    "token": "see the existing ones with `sandherd tokens list`",
}
"""The remedy for an invalid name, by field. For tasks and sandboxes it is `NAME_REMEDY`."""

_BUSY_SECONDS: Final = 0.5
"""The time to wait if a busy service does not suggest one."""
_REFUSED_REMEDIES: Final = {
    "spec.runtime": "use another --runtime, listed by `sandherd runtimes`",
    "spec.harness": "name a program after `--`, or a kind of agent with --harness",
    "spec.image": "omit --image, or select a runtime that uses images with --runtime",
    "spec.profile": "use another --profile, listed by `sandherd runtimes`",
    "spec.depends_on": "submit it first, and use its name from `sandherd tasks list`",
    "spec.inputs": "submit the dependency again with `--keep-work`, under another name, and depend on that",
    "spec.resume": "fork it with --fork, or name another task with --resume",
    "spec.secret_env": "retry it with new values: `sandherd tasks retry TASK --secret-env NAME`",
    "spec.secrets": "then submit it again",
    "spec.files": "submit it again under another name",
    "spec.sealed": "submit it again, and update the client if that does not help",
    "seconds": "use a shorter time",
    "task": "submit it under another name",
    "project": "name one with --project",
}
"""The remedy for a refusal, by the field of the command that was refused."""


_CREATE_COMMAND: Final = "spawner.create_sandbox"
"""The type of `contracts.commands.CreateSandbox`. After its refusal there is no sandbox to inspect."""
_NO_SANDBOX_REMEDY: Final = "see `sandherd sandboxes list`"
_NOT_CREATED_REMEDIES: Final = {
    "conflict": "use another name; see `sandherd sandboxes list`",
    "busy": "wait, or terminate a sandbox that is not needed; see `sandherd sandboxes list`",
}


class HerdError(Exception):
    """An operation on the herd failed. `problem` has the reason, the field and a remedy."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem

    @classmethod
    def of(cls, code: Code, message: str, *, field: str | None = None, remedy: str | None = None) -> Self:
        """An error raised by the client rather than by a service."""
        return cls(Problem(code=code, message=message, field=field, remedy=remedy))

    @property
    def line(self) -> str:
        """The message and the remedy in one line, with the command for the remedy, as the CLI shows them."""
        message = " ".join(self.problem.message.split()).removesuffix(".")
        return f"{message}; {with_command(self.problem.remedy)}" if self.problem.remedy else message


class ServiceUnavailableError(HerdError):
    """The service `service` is unavailable, or did not reply in time."""

    service: str = ""

    @classmethod
    def named(cls, service: str, problem: str) -> Self:
        """The error for one service."""
        error = cls.of(Code.UNAVAILABLE, f"{service} {problem}", remedy=STATUS_REMEDY)
        error.service = service
        return error


class InvalidFieldError(HerdError):
    """A field has a value that its contract does not accept."""

    violation: "Violation"

    @classmethod
    def in_model(cls, error: ValidationError, model: type[BaseModel]) -> Self:
        """The first error that pydantic found in a model."""
        from sandherd.contracts.violations import sentence, violation_of  # only needed for an error

        violation, problem = violation_of(error, model), ContractError.from_validation(error).problem
        text = sentence(violation)
        invalid_field = cls(
            problem if text is None else problem.model_copy(update={"message": f"{problem.field}: it {text}"})
        )
        invalid_field.violation = violation
        return invalid_field


class NotReachedError(HerdError):
    """The broker could not be reached, or refused the connection."""


def closed_error() -> HerdError:
    """The error for an operation on a connection whose context has ended."""
    return HerdError.of(Code.UNAVAILABLE, "the connection is closed", remedy="connect again")


def from_contract_error(error: ContractError) -> HerdError:
    """The problem of a contract error, as a `HerdError`."""
    return HerdError(error.problem)


def refused_task_error(event: "Envelope[TaskRejected]") -> HerdError:
    """The error for a task that was not accepted, from its event `task.rejected` or `task.refused`."""
    field = event.data.field
    remedy = _REFUSED_REMEDIES.get(field or "", f"change {field or 'it'}, and submit it again")
    return HerdError.of(
        Code.INVALID_FIELD, f"{event.subject} was rejected: {event.data.reason}", field=field, remedy=remedy
    )


def refused_command_error(event: "Envelope[SandboxRefused] | Envelope[TaskRejected]", command: str) -> HerdError:
    """The error for a refused command, from its event, such as `sandbox.refused` or `task.refused`."""
    field = event.data.field or ""
    verb = command.partition(".")[2].partition("_")[0]
    kind = event.type.partition(".")[0]
    default_remedy = f"see `sandherd {'tasks' if kind == 'task' else 'sandboxes'} get {event.subject}`"
    if command == _CREATE_COMMAND:
        default_remedy = _NOT_CREATED_REMEDIES.get(event.data.code or "", _NO_SANDBOX_REMEDY)
    elif event.data.code == Code.NOT_FOUND:
        default_remedy = NAME_REMEDY
    remedy = default_remedy if field in {"", "task", "sandbox"} else _REFUSED_REMEDIES.get(field, f"change {field}")
    code = Code.INVALID_FIELD if field.startswith(("spec.", "seconds")) else Code.CONFLICT
    message = f"{verb} {event.subject} was refused: {event.data.reason}"
    return HerdError.of(code, message, field=event.data.field, remedy=remedy)


def busy_wait(problem: Problem) -> float | None:
    """Seconds to wait before a retry if a service was too busy; None for any other refusal.

    The time is random, one to two times the service's `retry_after_seconds`, so that clients spread their retries.
    """
    if problem.code is not Code.BUSY:
        return None
    return (problem.retry_after_seconds or _BUSY_SECONDS) * random.uniform(1, 2)


def checked_name(name: str, field: str, *, remedy: str | None = None) -> str:
    """The name, if it is valid in a subject. Raises `HerdError` (`unsafe_name`) before anything is sent.

    Without `remedy`, the error names the command that lists the valid names for this field.
    """
    try:
        return safe_name(name, field)
    except UnsafeNameError as error:
        raise HerdError.of(
            Code.UNSAFE_NAME, str(error), field=field, remedy=remedy or _REMEDIES.get(field, NAME_REMEDY)
        ) from None


def new_sandbox_name(name: str) -> str:
    """The name, if it is valid for a new sandbox. Raises `HerdError` (`unsafe_name`) before anything is sent."""
    try:
        return safe_sandbox(checked_name(name, "sandbox"))
    except UnsafeNameError:
        raise HerdError.of(
            Code.UNSAFE_NAME,
            f"invalid sandbox name {name!r}: names begin with 'sbx-' and do not end with '-join'",
            field="sandbox",
            remedy="omit the name, or use another one",
        ) from None


def validated(model: type[ModelT], **fields: Any) -> ModelT:
    """A validated instance of a model. Raises `InvalidFieldError`, which names the field and its permitted values."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InvalidFieldError.in_model(error, model) from None
