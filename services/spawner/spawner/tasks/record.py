"""A task as it is kept in the bucket `tasks`."""

from datetime import datetime, timedelta
from typing import Any, Final, Self

from pydantic import AwareDatetime, Field

from sandherd.contracts.commands import Limits, TaskSpec
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.names import SafeName
from sandherd.contracts.offers import KeptSession, Previous
from sandherd.contracts.requests import TaskView
from sandherd.contracts.states import TASK_ENDED, TaskState, checked
from spawner.records.record import Record
from spawner.tasks.secrets import fields_with_secrets, forgotten, has_secrets, hidden

_FREE: Final[tuple[str, ...]] = ("task", "error", "reason", "result")
"""The members of a task's events in which anything may stand; in the others stand names and words of ours."""
SHOWN: Final = 300
"""How many characters of a long text a list shows."""


class TaskFacts(TaskView):
    """A task as it stands, with what is known of it inside the spawner alone."""

    limit_at: AwareDatetime | None = None
    """When the first of its limits of time is over."""
    named_secrets: frozenset[str] = frozenset()
    """The named secrets that its spec references."""
    left: SafeName | None = None
    """The sandbox of the attempt before."""


class TaskRecord(Record):
    """What is to be done, and how far it has come. `life` tells two tasks of one name apart, for names come again."""

    task: SafeName
    life: str
    """32 hexadecimal digits of the command that began it."""
    spec: TaskSpec
    runtime: SafeName
    """As resolved at submission: the task's own, its profile's, or the herd's."""
    limits: Limits
    """Resolved likewise, and within the herd's caps."""
    max_attempts: int = 1
    attempt_seconds: float | None = None
    submitted_by: str | None = None
    submitted_at: AwareDatetime
    state: TaskState = TaskState.PENDING
    attempt: int = 1
    not_before: AwareDatetime | None = None
    """Of a retry that waits: when it may begin."""
    retried_by: str | None = None
    """The command by which a person had it tried again last, as `life`: the same command again changes nothing."""
    limited_from: AwareDatetime | None = None
    """Since when the time of the whole task runs, if a person had it tried again."""
    previous: Previous | None = None
    """The attempt before this one, with what it left."""
    work: ArtifactRef | None = None
    """What the current attempt has put by of its work tree, for the next one."""
    transcript: ArtifactRef | None = None
    """The same of what was said."""
    session: KeptSession | None = None
    """The same of what its agent remembers."""
    scheduled_by: int = 0
    """The fencing token of the scheduler that wrote it last: one with an older token may not write it any more."""
    sandbox: SafeName | None = None
    """Of the current attempt: events of any other change nothing."""
    assigned_at: AwareDatetime | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    error: str | None = None
    error_type: str | None = None
    result: dict[str, Any] = Field(default_factory=dict)
    keep_secrets: float = 0
    """How many seconds its secrets are stored after it failed or was cancelled; as set at submission."""
    secrets_until: AwareDatetime | None = None
    """Of a task that failed or was cancelled: until when its secrets are stored, so that it can be retried."""
    erased: tuple[str, ...] | None = None
    """Fields of the spec that were damaged by erasing secrets. None: not recorded, as by version 0.1, which erased the
    files of every task that had ended; or there was no reason to erase any."""

    @property
    def name(self) -> str:
        """The task."""
        return self.task

    @property
    def source(self) -> str:
        """The source of what is said of this life of the task."""
        return f"/sandherd/spawner/{self.task}/{self.life}"

    @property
    def ended(self) -> bool:
        """Whether nothing more will become of it."""
        return self.state in TASK_ENDED

    def about(self) -> dict[str, str | None]:
        """Its events name the task, and the sandbox once there is one."""
        return {"taskid": self.task, "sandboxid": self.sandbox}

    def entering(self, state: TaskState, **changes: Any) -> Self:
        """The record in another state. Raises `TransitionRefusedError` if the table does not allow it."""
        checked(self.state, state)
        return self.model_copy(update={"state": state, **changes})

    def saying(self, now: datetime, *said: EventData) -> Self:
        """The record with these events to be published, without the task's secrets."""
        return super().saying(now, *(self._without_secrets(data) for data in said))

    def secret_part(self) -> str | None:
        """Its whole spec, if there are secrets in it: a secret may stand in its text as well."""
        return self.spec.model_dump_json(exclude_defaults=True) if has_secrets(self.spec) else None

    def without_secret_part(self) -> Self:
        """The same as when its secrets are forgotten, but for what it has sealed."""
        damaged = {*fields_with_secrets(self.spec), *(["files"] if self.spec.files else [])}
        retained = {"sealed": self.sealed, "secrets_until": self.secrets_until, "erased": tuple(sorted(damaged))}
        return self.forgetting().model_copy(update=retained)

    def with_secret_part(self, text: str) -> Self:
        """With the spec that was sealed."""
        return self.model_copy(update={"spec": TaskSpec.model_validate_json(text), "erased": None})

    def unfinished(self, now: datetime) -> Self:
        """The record of a task that failed or was cancelled: its spec is stored for a retry, secrets for a while."""
        if not self.keep_secrets or not has_secrets(self.spec):
            return self.without_secrets()
        return self.model_copy(
            update={
                "error": hidden(self.error, self.spec),
                "result": hidden(self.result, self.spec),
                "secrets_until": now + timedelta(seconds=self.keep_secrets),
            }
        )

    def without_secrets(self) -> Self:
        """The record of a task that failed or was cancelled, when its secrets are erased; its files are retained."""
        damaged = self.erased or fields_with_secrets(self.spec)
        return self.forgetting().model_copy(update={"spec": forgotten(self.spec, with_files=True), "erased": damaged})

    def forgetting(self) -> Self:
        """The record of a task that is completed: neither secrets nor files are needed any more."""
        return self.model_copy(
            update={
                "spec": forgotten(self.spec),
                "error": hidden(self.error, self.spec),
                "result": hidden(self.result, self.spec),
                "sealed": None,
                "secrets_until": None,
            }
        )

    def _without_secrets(self, data: EventData) -> EventData:
        free = {name: hidden(getattr(data, name), self.spec) for name in _FREE if name in type(data).model_fields}
        return data.model_copy(update=free)

    def limits_over(self) -> list[tuple[datetime, float, bool]]:
        """Its limits of time: when each is over, how long it is in seconds, and whether it is the whole task's."""
        if self.ended:
            return []
        whole, begin = self.spec.task_seconds, self.limited_from or self.submitted_at
        found = [] if whole is None else [(begin + timedelta(seconds=whole), float(whole), True)]
        if self.attempt_seconds is not None and self.assigned_at is not None:
            found.append((self.assigned_at + timedelta(seconds=self.attempt_seconds), self.attempt_seconds, False))
        return sorted(found)

    def view(self, *, whole: bool) -> TaskFacts:
        """The task as it is shown; texts are cut short unless the whole is asked for."""
        text = hidden(self.spec.text, self.spec)
        limits = self.limits_over()
        return TaskFacts(
            limit_at=limits[0][0] if limits else None,
            named_secrets=frozenset(self.spec.secrets.values()),
            left=self.previous.sandbox if self.previous else None,
            project=self.project,
            task=self.task,
            state=self.state,
            attempt=self.attempt,
            text=text if whole else text[:SHOWN],
            harness=self.spec.harness.kind,
            runtime=self.runtime,
            sandbox=self.sandbox,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            error=self.error,
            error_type=self.error_type,
            priority=self.spec.priority,
            deadline=self.spec.deadline,
            depends_on=list(self.spec.depends_on),
            max_attempts=self.max_attempts,
            not_before=self.not_before,
            profile=self.spec.profile,
            secrets_until=self.secrets_until,
            secret_env=sorted(self.spec.secret_env),
            result=self.result if whole else {name: _short(value) for name, value in self.result.items()},
        )


def _short(value: Any) -> Any:
    return value[:SHOWN] if isinstance(value, str) else value
