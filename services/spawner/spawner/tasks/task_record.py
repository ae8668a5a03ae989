"""A task's record in the bucket `tasks`."""

from datetime import datetime, timedelta
from typing import Any, Final, Self

from pydantic import AwareDatetime, Field

from sandherd.contracts.attempt_inputs import StoredSession
from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.commands import SandboxLimits, TaskSpec
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.names import SafeName
from sandherd.contracts.records import SharedTaskRecord
from sandherd.contracts.repositories import Checkout, Repository
from sandherd.contracts.requests import TaskView
from sandherd.contracts.states import TaskState, check_transition
from spawner.projects.defaults import NOTHING, AppliedDefaults, repository_of, with_defaults
from spawner.records.base_record import Record
from spawner.tasks.task_secrets import fields_with_secrets, has_secrets, hidden, without_secrets

_FREE_TEXTS: Final[tuple[str, ...]] = ("task", "error", "reason", "result")
"""The fields of a task's events with free text; the others contain names and fixed values."""
SHOWN: Final = 300
"""Maximum characters of a text in a list."""


class TaskFacts(TaskView):
    """A task's view, with fields that only the spawner uses."""

    limit_at: AwareDatetime | None = None
    """When the first of its time limits expires."""
    named_secrets: frozenset[str] = frozenset()
    """The named secrets that its spec references."""
    submitted_by: str | None = None
    left: SafeName | None = None
    """The sandbox of the previous attempt."""
    needs_checkout: bool = False
    """Whether its checkout has to be prepared before it can begin."""
    branch_id: SafeName | None = None
    """The id of the branch that it works on."""
    checkout_delay: str | None = None
    """Why its checkout is not prepared yet, if that takes long."""
    saves: bool = False
    """Whether its last sandbox has not ended, or not all of its events are handled: commits may still arrive."""


class TaskRecord(Record, SharedTaskRecord):
    """A task and its state. `life`, the id of the command that created it, distinguishes tasks of the same name."""

    task: SafeName
    spec: TaskSpec
    runtime: SafeName
    """The runtime, resolved at submission from the spec, its profile and the herd's settings."""
    limits: SandboxLimits
    """The limits of its sandboxes, resolved at submission, within those of the herd."""
    budget: BudgetLimits | None = None
    """The budget of all its attempts together, from its spec or its profile."""
    defaults: AppliedDefaults = NOTHING
    """The project's defaults at submission for what the spec omits, other than limits and times."""
    constraints: Constraints | None = None
    """The constraints of its agents, from the spec, the project, the profile and the herd together."""
    max_attempts: int = 1
    attempt_seconds: float | None = None
    submitted_by: str | None = None
    submitted_at: AwareDatetime
    not_before: AwareDatetime | None = None
    """The earliest start of a pending retry."""
    retried_by: str | None = None
    """The last command by which a user retried it, in the format of `life`: repeating the command changes nothing."""
    cancelled_by: str | None = None
    """The last command that cancelled it, in the format of `life`: repeating the command changes nothing."""
    limited_from: AwareDatetime | None = None
    """When a user last retried it: the time limit of the whole task begins then, instead of at `submitted_at`."""
    work: ArtifactRef | None = None
    """The work tree that the current attempt saved for the next one."""
    transcript: ArtifactRef | None = None
    """The transcript that the current attempt saved."""
    session: StoredSession | None = None
    """The agent session that the current attempt saved."""
    branch: SafeName | None = None
    """The id of the branch on which all its attempts work."""
    checkout: Checkout | None = None
    """What the current attempt checks out; None until it is prepared."""
    prepared_at: AwareDatetime | None = None
    waits_because: str | None = None
    """Why its checkout is not prepared yet."""
    scheduled_by: int = 0
    """Fencing token of the scheduler that wrote it last: a scheduler with an older token may no longer write it."""
    assigned_at: AwareDatetime | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    error: str | None = None
    error_type: str | None = None
    result: dict[str, Any] = Field(default_factory=dict)
    keep_secrets: float = 0
    """Seconds for which its secrets are stored after it failed or was cancelled, as set at submission."""
    secrets_until: AwareDatetime | None = None
    """Until when the secrets of a failed or cancelled task are stored, so that it can be retried."""
    erased: tuple[str, ...] | None = None
    """Fields of the spec that were damaged by erasing secrets. None: nothing was erased, or it was not recorded, as in
    version 0.1, which erased the files of every ended task."""

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task

    @property
    def source(self) -> str:
        """The source of the events of this life of the task."""
        return f"/sandherd/spawner/{self.task}/{self.life}"

    @property
    def whole_spec(self) -> TaskSpec:
        """The spec with the defaults of its project. Raises `ValidationError` if they do not fit, which is a bug."""
        return with_defaults(self.spec, self.defaults)

    @property
    def repository(self) -> Repository | None:
        """The repository that it works on."""
        return repository_of(self.spec, self.defaults)

    @property
    def harness_kind(self) -> str:
        """The kind of its agent."""
        return self.defaults.harness or self.spec.harness.kind

    @property
    def stored_inputs(self) -> list[ArtifactRef]:
        """The artifacts with which it begins, without the bundle of a local repository: that belongs to its branch."""
        own = (self.checkout.bundle, self.checkout.lfs) if self.checkout else ()
        return [one for one in (self.spec.work, *own) if one is not None]

    def event_ids(self) -> dict[str, str | None]:
        """The ids in its events: of the task, and of its sandbox if it has one."""
        return {"taskid": self.task, "sandboxid": self.sandbox}

    def entering(self, state: TaskState, **changes: Any) -> Self:
        """The record in another state. Raises `TransitionRefusedError` if the transition is not allowed."""
        check_transition(self.state, state)
        return self.model_copy(update={"state": state, **changes})

    def with_events(self, now: datetime, *events: EventData) -> Self:
        """The record with these events to be published, without the task's secrets."""
        return super().with_events(now, *(self._without_secrets(data) for data in events))

    def secret_part(self) -> str | None:
        """The whole spec as JSON if it has secrets, because a secret may occur in its text too; else None."""
        return self.spec.model_dump_json(exclude_defaults=True) if has_secrets(self.spec) else None

    def without_secret_part(self) -> Self:
        """The record without secrets and files, as after erasing them, but with the sealed part that contains them."""
        damaged = {*fields_with_secrets(self.spec), *(["files"] if self.spec.files else [])}
        retained = {"sealed": self.sealed, "secrets_until": self.secrets_until, "erased": tuple(sorted(damaged))}
        return self.forgetting().model_copy(update=retained)

    def with_secret_part(self, text: str) -> Self:
        """The record with the spec that was sealed."""
        return self.model_copy(update={"spec": TaskSpec.model_validate_json(text), "erased": None})

    def unfinished(self, now: datetime) -> Self:
        """The record of a failed or cancelled task: its spec is stored for a retry, with secrets for `keep_secrets`."""
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
        """The record of a failed or cancelled task without its secrets. Files that contain no secret are retained."""
        damaged = self.erased or fields_with_secrets(self.spec)
        return self.forgetting().model_copy(
            update={"spec": without_secrets(self.spec, with_files=True), "erased": damaged}
        )

    def forgetting(self) -> Self:
        """The record of a completed task, without the secrets and files that are no longer needed."""
        return self.model_copy(
            update={
                "spec": without_secrets(self.spec),
                "error": hidden(self.error, self.spec),
                "result": hidden(self.result, self.spec),
                "sealed": None,
                "secrets_until": None,
            }
        )

    def _without_secrets(self, data: EventData) -> EventData:
        fields = type(data).model_fields
        texts = {name: hidden(getattr(data, name), self.spec) for name in _FREE_TEXTS if name in fields}
        return data.model_copy(update=texts)

    def time_limits(self) -> list[tuple[datetime, float, bool]]:
        """Its time limits: when each expires, its length in seconds, and whether it is that of the whole task."""
        if self.ended:
            return []
        whole, begin = self.spec.task_seconds, self.limited_from or self.submitted_at
        found = [] if whole is None else [(begin + timedelta(seconds=whole), float(whole), True)]
        if self.attempt_seconds is not None and self.assigned_at is not None:
            found.append((self.assigned_at + timedelta(seconds=self.attempt_seconds), self.attempt_seconds, False))
        return sorted(found)

    def view(self, *, whole: bool) -> TaskFacts:
        """The task's view; texts are truncated unless `whole`."""
        text = hidden(self.spec.text, self.spec)
        limits = self.time_limits()
        return TaskFacts(
            limit_at=limits[0][0] if limits else None,
            named_secrets=frozenset(self.spec.secrets.values()),
            submitted_by=self.submitted_by,
            left=self.previous.sandbox if self.previous else None,
            needs_checkout=self.repository is not None and self.checkout is None,
            checkout_delay=self.waits_because,
            branch_id=self.branch,
            repository=self.repository.shown if self.repository else None,
            branch=self.checkout.branch if self.checkout else None,
            project=self.project,
            task=self.task,
            state=self.state,
            attempt=self.attempt,
            text=text if whole else text[:SHOWN],
            harness=self.harness_kind,
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
            labels=self.spec.labels,
            result=self.result if whole else {name: _short(value) for name, value in self.result.items()},
        )


def _short(value: Any) -> Any:
    return value[:SHOWN] if isinstance(value, str) else value
