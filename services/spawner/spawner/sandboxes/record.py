"""A sandbox as it is kept in the bucket `sandboxes`."""

import json
from typing import Any, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sandherd.contracts.commands import Limits, SandboxSpec
from sandherd.contracts.names import SafeName
from sandherd.contracts.offers import Previous
from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED, SandboxState, checked
from spawner.records.record import Record
from spawner.tasks.secrets import forgotten_alone, has_secrets


class WorkerKey(BaseModel):
    """A public key that was given a credential, and when that runs out."""

    model_config = ConfigDict(frozen=True)

    public_key: str
    expires_at: AwareDatetime


class SandboxRecord(Record):
    """What was asked of a runtime, and how far it has come. Written before the runtime is asked."""

    sandbox: SafeName
    task: SafeName | None = None
    """None: it was asked for by itself, and is there for whoever asked."""
    attempt: int = 1
    runtime: SafeName
    limits: Limits
    spec: SandboxSpec | None = None
    """Of a sandbox without a task; otherwise its task's is used."""
    requested_by: str | None = None
    unit: SafeName | None = None
    """What its runtime knows it by, where that is not its own name: one of the pool's has had a name before."""
    profile: SafeName | None = None
    previous: Previous | None = None
    """What it is given of the attempt before."""
    resumes: SafeName | None = None
    """The sandbox of an earlier task, from whose session it goes on."""
    expires_at: AwareDatetime | None = None
    """When its time to live is over."""
    pause_wanted: bool = False
    """Whether it is to be frozen; its runtime is asked for that only after this was written."""
    pause_reason: str = ""
    may_be_frozen: bool = False
    """Whether its runtime may have been asked to freeze it: then it is asked to let it go on, whatever it had done."""
    joiner_until: AwareDatetime | None = None
    """How long the joiner's credentials file is good that it was given first."""
    joiner_serial: int = 0
    """Of its joiner's credential. Each end revokes the one before: a recovery after that is given the next."""
    led_by: int = 0
    """The fencing token of the keeper that wrote it last: one with an older token may not write it any more."""
    state: SandboxState = SandboxState.REQUESTED
    fence: int | None = None
    """The revision at which this record was made. It can't be in that first write: see `fence_of`."""
    isolation: str | None = None
    requested_at: AwareDatetime
    spawned_at: AwareDatetime | None = None
    running_at: AwareDatetime | None = None
    stopping_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    reason: str | None = None
    error: str | None = None
    error_type: str | None = None
    stopped: bool = False
    """Whether its first worker has ended, with all its processes."""
    exit_code: int | None = None
    recoveries: int = 0
    recovered_at: AwareDatetime | None = None
    unsaid: bool = False
    """Whether it ended with something in its spool that could not be said."""
    keys: tuple[WorkerKey, ...] = ()
    values: dict[str, str] = Field(default_factory=dict)
    """Values of the named secrets that its spec references, by variable, as they were when it was made. Stored
    encrypted."""

    @property
    def name(self) -> str:
        """The sandbox."""
        return self.sandbox

    @property
    def source(self) -> str:
        """The source of what is said of it; no sandbox's name ever comes again."""
        return f"/sandherd/spawner/{self.sandbox}"

    @property
    def task_key(self) -> str | None:
        """The key of its task, if it has one."""
        return f"{self.project}.{self.task}" if self.task else None

    @property
    def alias(self) -> str:
        """What its runtime knows it by: its unit."""
        return self.unit or self.sandbox

    @property
    def ended(self) -> bool:
        """Whether nothing more will become of it."""
        return self.state in SANDBOX_ENDED

    def fence_of(self, revision: int) -> int:
        """The fencing token, of a record that stands at this revision."""
        return revision if self.fence is None else self.fence

    def about(self) -> dict[str, str | None]:
        """Its events name it and its task."""
        return {"taskid": self.task, "sandboxid": self.sandbox}

    def entering(self, state: SandboxState, **changes: Any) -> Self:
        """The record in another state. Raises `TransitionRefusedError` if the table does not allow it."""
        checked(self.state, state)
        return self.model_copy(update={"state": state, **changes})

    def secret_part(self) -> str | None:
        """Its spec, if it has one of its own with secrets in it; with values of named secrets, both in one object."""
        spec = self.spec if self.spec and has_secrets(self.spec) else None
        if self.values:
            whole = {"values": self.values, "spec": spec and spec.model_dump(mode="json", exclude_defaults=True)}
            return json.dumps(whole)
        return spec.model_dump_json(exclude_defaults=True) if spec else None

    def without_secret_part(self) -> Self:
        """The same as when its secrets are forgotten, but for what it has sealed."""
        return self.forgetting().model_copy(update={"sealed": self.sealed})

    def with_secret_part(self, text: str) -> Self:
        """With what was sealed."""
        found = json.loads(text)
        values, spec = (found["values"], found["spec"]) if "values" in found else ({}, found)
        whole = SandboxSpec.model_validate_json(json.dumps(spec)) if spec else self.spec
        return self.model_copy(update={"spec": whole, "values": values})

    def forgetting(self) -> Self:
        """The record of a sandbox that has ended and is not started again: no secrets are needed any more."""
        spec = forgotten_alone(self.spec) if self.spec and has_secrets(self.spec) else self.spec
        return self.model_copy(update={"spec": spec, "sealed": None, "values": {}})

    def view(self) -> SandboxView:
        """The sandbox as it is shown."""
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
