"""A sandbox's record in the bucket `sandboxes`."""

import json
from typing import Any, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.commands import SandboxLimits, SandboxSpec
from sandherd.contracts.names import SafeName
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.repositories import Checkout
from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED, SandboxState, check_transition
from sandherd.contracts.task_inputs import TaskInput
from spawner.records.base_record import Record
from spawner.tasks.task_secrets import has_secrets, sandbox_without_secrets


class WorkerKey(BaseModel):
    """A public key for which a credential was issued, and when that expires."""

    model_config = ConfigDict(frozen=True)

    public_key: str
    expires_at: AwareDatetime


class SandboxRecord(Record, SharedSandboxRecord):
    """A sandbox and its state. Written before the runtime is called."""

    sandbox: SafeName
    runtime: SafeName
    limits: SandboxLimits
    spec: SandboxSpec | None = None
    """Set for a sandbox without a task; otherwise the task's spec is used."""
    requested_by: str | None = None
    profile: SafeName | None = None
    previous: Previous | None = None
    """The previous attempt, whose results it receives."""
    inputs: tuple[TaskInput, ...] = ()
    """The results from which it gets files, of tasks that its task depends on."""
    checkout: Checkout | None = None
    """The branch of its task's repository that it checks out."""
    resumes: SafeName | None = None
    """The sandbox of an earlier task whose session it resumes."""
    pause_wanted: bool = False
    """Whether a pause is requested; written before its runtime is requested to freeze it."""
    pause_reason: str = ""
    may_be_frozen: bool = False
    """Whether its runtime may have received a request to freeze it: then it is always requested to unfreeze it."""
    joiner_until: AwareDatetime | None = None
    """Expiry of its first joiner's credentials file."""
    joiner_serial: int = 0
    """Serial number of its joiner's credential. Each end revokes the current one; a later recovery gets the next."""
    led_by: int = 0
    """Fencing token of the reconciler that last wrote this record: one with an older token may not write it."""
    fence: int | None = None
    """The revision at which this record was created. It can't be in that first write: see `fence_of`."""
    isolation: str | None = None
    requested_at: AwareDatetime
    spawned_at: AwareDatetime | None = None
    running_at: AwareDatetime | None = None
    stopping_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    terminated_by: str | None = None
    """The id of the command that ended it, without dashes: repeating that command changes nothing."""
    error: str | None = None
    error_type: str | None = None
    stopped: bool = False
    """Whether its first worker has ended, with all its processes."""
    exit_code: int | None = None
    recoveries: int = 0
    recovered_at: AwareDatetime | None = None
    unsaid: bool = False
    """Whether it ended with undelivered events in its spool."""
    keys: tuple[WorkerKey, ...] = ()
    values: dict[str, str] = Field(default_factory=dict)
    """Values of the named secrets that its spec references, by variable, as of its creation. Stored encrypted."""

    @property
    def name(self) -> str:
        """The sandbox."""
        return self.sandbox

    @property
    def source(self) -> str:
        """The source of its events; a sandbox's name is never reused."""
        return f"/sandherd/spawner/{self.sandbox}"

    @property
    def task_key(self) -> str | None:
        """The key of its task, if it has one."""
        return f"{self.project}.{self.task}" if self.task else None

    @property
    def runtime_unit(self) -> str:
        """The sandbox's name in its runtime: the unit from the pool, or its own name."""
        return self.unit or self.sandbox

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return self.state in SANDBOX_ENDED

    def fence_of(self, revision: int) -> int:
        """The fencing token of a record at this revision."""
        return revision if self.fence is None else self.fence

    def event_ids(self) -> dict[str, str | None]:
        """Ids in its events: the sandbox and its task."""
        return {"taskid": self.task, "sandboxid": self.sandbox}

    def entering(self, state: SandboxState, **changes: Any) -> Self:
        """The record in another state. Raises `TransitionRefusedError` if the transition is not allowed."""
        check_transition(self.state, state)
        return self.model_copy(update={"state": state, **changes})

    def secret_part(self) -> str | None:
        """The secrets as JSON: the spec if it has secrets; an object with it and the values if secrets are named."""
        spec = self.spec if self.spec and has_secrets(self.spec) else None
        if self.values:
            whole = {"values": self.values, "spec": spec and spec.model_dump(mode="json", exclude_defaults=True)}
            return json.dumps(whole)
        return spec.model_dump_json(exclude_defaults=True) if spec else None

    def without_secret_part(self) -> Self:
        """The record without secrets, but with their encrypted (sealed) form."""
        return self.forgetting().model_copy(update={"sealed": self.sealed})

    def with_secret_part(self, text: str) -> Self:
        """The record with its secrets. `text`: the decrypted sealed part."""
        found = json.loads(text)
        values, spec = (found["values"], found["spec"]) if "values" in found else ({}, found)
        whole = SandboxSpec.model_validate_json(json.dumps(spec)) if spec else self.spec
        return self.model_copy(update={"spec": whole, "values": values})

    def forgetting(self) -> Self:
        """The record of a sandbox that has ended and is not started again, without secrets."""
        spec = sandbox_without_secrets(self.spec) if self.spec and has_secrets(self.spec) else self.spec
        return self.model_copy(update={"spec": spec, "sealed": None, "values": {}})

    def view(self) -> SandboxView:
        """The sandbox's view."""
        return SandboxView(
            project=self.project,
            sandbox=self.sandbox,
            state=self.state,
            task=self.task,
            attempt=self.attempt,
            runtime=self.runtime,
            isolation=self.isolation,
            requested_at=self.requested_at,
            running_at=self.running_at,
            ended_at=self.ended_at,
            reason=self.reason,
            error=self.error,
            expires_at=self.expires_at,
            profile=self.profile,
            warm=self.unit is not None,
        )
