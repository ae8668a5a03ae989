"""From a sandbox's record and its task to what a runtime is given."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Self

from sandherd.contracts.requests import Profile
from sandherd.contracts.specs import SandboxSpec
from sandherd.settings import Settings
from sandherd.telemetry import traceparents
from spawner.records.store import Held
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.sandboxes import exporting
from spawner.sandboxes.credentials import Mint
from spawner.sandboxes.decisions import JOINER_MARGIN, joiner_end
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.record import TaskRecord

_MIB: Final = 1024 * 1024
_GONE: Final = "its secrets are not stored (a backup was restored that has none): retry it with its secrets"
_JOINER_LONGER: Final = 3600.0
"""How much longer than the oldest sandbox a joiner's credential lives: to recover what one has left."""


@dataclass(frozen=True)
class Plans:
    """What goes into every sandbox's plan. Times are in seconds."""

    nats_url: str
    heartbeat_interval: float
    stop_grace: float
    joiner_life: float
    """Of a sandbox that has no end of its own."""
    max_work_bytes: int = 0
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    forwarded: Collection[str] = ()
    """Names of the spawner's own variables that every sandbox gets."""
    own: Mapping[str, str] = field(default_factory=dict)
    """The spawner's own variables."""
    collector: str | None = None
    """Where agents export their telemetry to, if they may."""

    @classmethod
    def of(cls, settings: Settings, own: Mapping[str, str]) -> Self:
        """What these settings and the spawner's own variables come to."""
        return cls(
            nats_url=settings.nats_url,
            heartbeat_interval=settings.heartbeat_interval,
            stop_grace=settings.stop_grace,
            joiner_life=settings.max_age + _JOINER_LONGER,
            max_work_bytes=settings.max_work_mb * _MIB,
            profiles=settings.profiles,
            forwarded=settings.forward_env,
            own=own,
            collector=settings.sandbox_otlp_endpoint,
        )

    def make(self, held: Held[SandboxRecord], task: TaskRecord | None, minter: Mint, now: datetime) -> SandboxPlan:
        """All that a runtime needs for this sandbox. Raises `RuntimeFailedError` if its task is gone."""
        sandbox = held.record
        spec = sandbox.spec or (task.spec if task else None)
        if spec is None:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"the task of {sandbox.sandbox} is gone")
        if _lacks_secrets(sandbox) or (task is not None and _lacks_secrets(task)):
            raise RuntimeFailedError(RuntimeFault.REFUSED, _GONE)
        return SandboxPlan(
            project=sandbox.project,
            sandbox=sandbox.sandbox,
            unit=sandbox.alias,
            task=sandbox.task,
            attempt=sandbox.attempt,
            fence=sandbox.fence_of(held.revision),
            spec=self._with_own(with_named_values(spec, sandbox.values), exporting.variables(self.collector, sandbox)),
            limits=sandbox.limits,
            mounts=self._profile(spec).mounts,
            user_namespaces=self._profile(spec).user_namespaces,
            previous=sandbox.previous,
            max_work_bytes=self.max_work_bytes,
            joiner=minter.mint_joiner(
                sandbox.project, sandbox.sandbox, self.joiner_seconds(sandbox, now), sandbox.joiner_serial
            ),
            nats_url=self.nats_url,
            heartbeat_interval=self.heartbeat_interval,
            stop_grace=self.stop_grace,
            traceparent=_agent_span(sandbox),
        )

    def _profile(self, spec: SandboxSpec) -> Profile:
        """As it is now: what was mounted or forwarded once and is not any more, is not."""
        return self.profiles.get(spec.profile or "", Profile())

    def _with_own(self, spec: SandboxSpec, plain: Mapping[str, str]) -> SandboxSpec:
        """The spec with what is forwarded. That is in no record and in no event: it goes into the sandbox alone."""
        names = {*self.forwarded, *self._profile(spec).forward_env} - spec.env.keys()
        given = {name: self.own[name] for name in sorted(names) if name in self.own}
        if not given and not plain:
            return spec
        return spec.model_copy(
            update={"env": {**plain, **given, **spec.env}, "secret_env": frozenset({*spec.secret_env, *given})}
        )

    def joiner_seconds(self, sandbox: SandboxRecord, now: datetime) -> float:
        """As long as the sandbox may live, and a while to recover it; that while also for one whose time is over."""
        until = joiner_end(sandbox.expires_at)
        if until is None:
            return self.joiner_life
        return max(JOINER_MARGIN, until - now).total_seconds()


def with_named_values(spec: SandboxSpec, values: Mapping[str, str]) -> SandboxSpec:
    """The spec with values of named secrets instead of their names."""
    if not spec.secrets:
        return spec
    given = {"env": {**spec.env, **values}, "secret_env": frozenset({*spec.secret_env, *values}), "secrets": {}}
    return spec.model_copy(update=given)


def _lacks_secrets(record: SandboxRecord | TaskRecord) -> bool:
    """Whether it has secrets that can't be read any more, and still needs them."""
    return record.sealed is not None and record.secret_part() is None and not record.ended


def _agent_span(sandbox: SandboxRecord) -> str | None:
    """What all that its worker says is part of: its agent's work, or the sandbox itself where no task is done."""
    if sandbox.traceparent is None or sandbox.task is None:
        return sandbox.traceparent
    return traceparents.of_agent(sandbox.traceparent)
