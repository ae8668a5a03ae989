"""Builds a runtime's plan from a sandbox's record and its task."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from sandherd.bus.auth import tls
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import Profile
from sandherd.contracts.specs import SandboxSpec, TaskSpec
from sandherd.settings import Settings
from sandherd.telemetry import traceparents
from spawner.records.store import StoredRecord
from spawner.repositories.branch_record import repository_key
from spawner.repositories.mirror_paths import mirror_path, mirrors_folder
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.sandboxes import telemetry_environment
from spawner.sandboxes.credentials import Mint
from spawner.sandboxes.git_proxy_access import GitProxyAccess, repository_url
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.sandboxes.sandbox_transitions import JOINER_MARGIN, joiner_end
from spawner.tasks.task_record import TaskRecord

_MIB: Final = 1024 * 1024
BRANCH_NAME: Final = "BRANCH_NAME"
"""The variable with the name of the branch, in sandboxes of tasks with a repository."""
_SECRETS_MISSING: Final = (
    "its secrets are not stored (a backup without secrets was restored): retry it with its secrets"
)
_JOINER_MARGIN_SECONDS: Final = 3600.0
"""How much longer than the oldest sandbox a joiner's credential is valid, in seconds: to recover undelivered events."""


@dataclass(frozen=True)
class SandboxPlans:
    """The common part of every sandbox's plan. Times are in seconds."""

    nats_url: str
    heartbeat_interval: float
    stop_grace: float
    joiner_life: float
    """Lifetime of a joiner's credential if its sandbox has no expiry."""
    max_work_bytes: int = 0
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    forwarded: Collection[str] = ()
    """Names of the spawner's own variables that are forwarded to every sandbox."""
    own: Mapping[str, str] = field(default_factory=dict)
    """The spawner's own variables."""
    tls: Mapping[str, Path] = field(default_factory=dict)
    """The TLS files with which workers connect to the broker, by variable. They are read again for each sandbox."""
    repositories: Path = Path()
    """The folder of the mirrors of repositories."""
    collector: str | None = None
    """The endpoint to which agents export telemetry, if they may."""
    git_proxy: GitProxyAccess | None = None
    """How sandboxes reach their repositories through the git proxy; None if there is no proxy."""

    @classmethod
    def of(cls, settings: Settings, own: Mapping[str, str], seed: str) -> Self:
        """The plans for these settings. `own` are the spawner's variables, `seed` is that of its key for workers."""
        return cls(
            nats_url=settings.nats_url,
            tls=_tls_files(settings),
            heartbeat_interval=settings.heartbeat_interval,
            stop_grace=settings.stop_grace,
            joiner_life=settings.max_age + _JOINER_MARGIN_SECONDS,
            max_work_bytes=settings.max_work_mb * _MIB,
            profiles=settings.profiles,
            forwarded=settings.forward_env,
            own=own,
            repositories=mirrors_folder(settings.home),
            collector=settings.sandbox_otlp_endpoint,
            git_proxy=GitProxyAccess.of(settings, seed),
        )

    def make(
        self, held: StoredRecord[SandboxRecord], task: TaskRecord | None, minter: Mint, now: datetime
    ) -> SandboxPlan:
        """The plan of a sandbox. Raises `RuntimeFailedError`, for example if its task no longer exists."""
        sandbox = held.record
        spec = sandbox.spec or (with_inputs(task.whole_spec, sandbox) if task else None)
        if spec is None:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"the task of {sandbox.sandbox} no longer exists")
        if _lacks_secrets(sandbox) or (task is not None and _lacks_secrets(task)):
            raise RuntimeFailedError(RuntimeFault.REFUSED, _SECRETS_MISSING)
        return SandboxPlan(
            project=sandbox.project,
            sandbox=sandbox.sandbox,
            unit=sandbox.runtime_unit,
            task=sandbox.task,
            attempt=sandbox.attempt,
            fence=sandbox.fence_of(held.revision),
            spec=self._with_proxy(
                self._with_forwarded(
                    with_named_values(spec, sandbox.values), telemetry_environment.variables(self.collector, sandbox)
                ),
                sandbox,
            ),
            git_proxy=self.git_proxy.url if self.git_proxy and repository_url(spec) else None,
            limits=sandbox.limits,
            mounts=self._profile(spec).mounts,
            repository=self._mirror(spec, sandbox),
            user_namespaces=self._profile(spec).user_namespaces,
            previous=sandbox.previous,
            max_work_bytes=self.max_work_bytes,
            joiner=minter.mint_joiner(
                sandbox.project, sandbox.sandbox, self.joiner_seconds(sandbox, now), sandbox.joiner_serial
            ),
            nats_url=self.nats_url,
            tls={name: _read_tls_file(name, path) for name, path in self.tls.items()},
            heartbeat_interval=self.heartbeat_interval,
            stop_grace=self.stop_grace,
            traceparent=_agent_span(sandbox),
        )

    def _mirror(self, spec: SandboxSpec, sandbox: SandboxRecord) -> Path | None:
        if not isinstance(spec, TaskSpec) or spec.repository is None or sandbox.checkout is None:
            return None
        mounted = sandbox.checkout.bundle is None
        return mirror_path(self.repositories, sandbox.project, repository_key(spec.repository)) if mounted else None

    def _profile(self, spec: SandboxSpec) -> Profile:
        """The profile as currently configured: removed mounts and forwarded variables no longer apply."""
        return self.profiles.get(spec.profile or "", Profile())

    def _with_forwarded(self, spec: SandboxSpec, plain: Mapping[str, str]) -> SandboxSpec:
        """The spec with `plain` and the forwarded variables. These are in no record or event, only in the sandbox."""
        names = {*self.forwarded, *self._profile(spec).forward_env} - spec.env.keys()
        forwarded = {name: self.own[name] for name in sorted(names) if name in self.own}
        if not forwarded and not plain:
            return spec
        return spec.model_copy(
            update={"env": {**plain, **forwarded, **spec.env}, "secret_env": frozenset({*spec.secret_env, *forwarded})}
        )

    def _with_proxy(self, spec: SandboxSpec, sandbox: SandboxRecord) -> SandboxSpec:
        """The spec with the variables that git needs for the proxy, if its task uses it and there is one."""
        url = repository_url(spec)
        if self.git_proxy is None or url is None or not isinstance(spec, TaskSpec) or spec.repository is None:
            return spec
        names = (sandbox.project, sandbox.sandbox)
        secrets = self.git_proxy.secrets(*names)
        env = {**spec.env, **self.git_proxy.variables(url, spec.env, *names), **secrets}
        repository = spec.repository.model_copy(update={"git_proxy": False})  # an older worker refuses the field
        update = {"env": env, "secret_env": frozenset({*spec.secret_env, *secrets}), "repository": repository}
        return spec.model_copy(update=update)

    def joiner_seconds(self, sandbox: SandboxRecord, now: datetime) -> float:
        """The sandbox's remaining lifetime plus a margin for recovery; for an expired one only the margin."""
        until = joiner_end(sandbox.expires_at)
        if until is None:
            return self.joiner_life
        return max(JOINER_MARGIN, until - now).total_seconds()


def _tls_files(settings: Settings) -> dict[str, Path]:
    """The configured files for TLS connections of sandboxes. Raises `ContractError` for a certificate without key."""
    if (settings.sandbox_nats_cert is None) != (settings.sandbox_nats_key is None):
        raise ContractError(
            Code.INVALID_FIELD,
            "sandbox_nats_cert and sandbox_nats_key belong together",
            field="sandbox_nats_key",
            remedy="set both, or none",
        )
    files = {tls.CA: settings.sandbox_nats_ca, tls.CERT: settings.sandbox_nats_cert, tls.KEY: settings.sandbox_nats_key}
    return {name: path for name, path in files.items() if path}


def _read_tls_file(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeError) as error:
        message = f"SANDHERD_SANDBOX_{name}: {path} can't be read ({type(error).__name__}); check the setting"
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, message) from error


def with_inputs(spec: TaskSpec, sandbox: SandboxRecord) -> TaskSpec:
    """The spec with its inputs: the branch that it checks out, and the results from which it gets files."""
    if sandbox.checkout is not None and spec.repository is not None:
        repository = spec.repository.model_copy(update={"checkout": sandbox.checkout, "pull_request": None})
        env = {BRANCH_NAME: sandbox.checkout.branch, **spec.env}
        spec = spec.model_copy(update={"repository": repository, "env": env})
    return spec.model_copy(update={"inputs": sandbox.inputs}) if sandbox.inputs else spec


def with_named_values(spec: SandboxSpec, values: Mapping[str, str]) -> SandboxSpec:
    """The spec with values of named secrets instead of their names."""
    if not spec.secrets:
        return spec
    update = {"env": {**spec.env, **values}, "secret_env": frozenset({*spec.secret_env, *values}), "secrets": {}}
    return spec.model_copy(update=update)


def _lacks_secrets(record: SandboxRecord | TaskRecord) -> bool:
    """Whether the sandbox or task needs secrets that can no longer be read."""
    return record.sealed is not None and record.secret_part() is None and not record.ended


def _agent_span(sandbox: SandboxRecord) -> str | None:
    """The parent span of the worker's events: the agent's span, or the sandbox's span if it has no task."""
    if sandbox.traceparent is None or sandbox.task is None:
        return sandbox.traceparent
    return traceparents.of_agent(sandbox.traceparent)
