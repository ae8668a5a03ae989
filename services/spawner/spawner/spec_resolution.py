"""Resolves a spec to its runtime, limits and environment, or refuses it. All functions are pure.

A value is taken from the spec, else from its profile, else from the herd's settings.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Self

from sandherd.contracts.agent_server import SERVER_MEMORY_MB
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.durations import duration_text
from sandherd.contracts.errors import Code
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import Profile, ProjectDefaults
from sandherd.contracts.specs import SandboxLimits, SandboxSpec
from sandherd.settings import Settings
from spawner.runtimes.contract import NOT_ENFORCED, Capabilities

_MB_PER_GB: Final = 1024


@dataclass(frozen=True)
class Refusal:
    """Why something is refused: what is allowed, the field that is invalid, and a code for programs."""

    reason: str
    field: str
    code: Code = Code.INVALID_FIELD


@dataclass(frozen=True)
class SpawnPolicy:
    """The limits, defaults and profiles of this herd, and what its runtimes support. Times are in seconds."""

    runtimes: frozenset[str]
    default_runtime: str
    defaults: SandboxLimits
    caps: SandboxLimits
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    keep_secrets: float = 0
    """Seconds for which the secrets of a failed or cancelled task are stored."""
    max_attempts: int = 1
    """Maximum attempts of a task that does not set its own."""
    attempt_seconds: float | None = None
    usual_ttl: float = 43_200
    """The lifetime of a sandbox whose spec sets none."""
    max_ttl: float = 604_800
    imageless: frozenset[str] = frozenset()
    """Runtimes that do not support images."""
    mountless: frozenset[str] = frozenset()
    """Runtimes that do not support mounts."""
    volumes_only: frozenset[str] = frozenset()
    """Runtimes that do not support mounts of a host's folders."""
    coreless: frozenset[str] = frozenset()
    """Runtimes that do not enforce a limit on cores."""
    constraints: Constraints | None = None
    """Constraints of all agents."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Runtimes in which no sandbox can be created, each with the reason."""

    @classmethod
    def of(cls, settings: Settings, runtimes: Mapping[str, Capabilities]) -> Self:
        """The policy of these settings and runtimes. Defaults never exceed the caps."""
        usual = SandboxLimits(memory_mb=int(settings.sandbox_memory_gb * _MB_PER_GB), cores=settings.sandbox_cores)
        return cls(
            runtimes=frozenset(runtimes),
            default_runtime=settings.runtime,
            defaults=usual.capped(settings.caps),
            caps=settings.caps,
            profiles=settings.profiles,
            keep_secrets=settings.keep_secrets,
            max_attempts=settings.max_attempts,
            attempt_seconds=settings.attempt_timeout,
            constraints=settings.constraints,
            usual_ttl=min(settings.max_age, settings.max_ttl),
            max_ttl=settings.max_ttl,
            imageless=frozenset(name for name, one in runtimes.items() if not one.images),
            mountless=frozenset(name for name, one in runtimes.items() if not one.mounts),
            volumes_only=frozenset(name for name, one in runtimes.items() if one.volumes_only),
            coreless=frozenset(name for name, one in runtimes.items() if one.cores == NOT_ENFORCED),
            unusable={name: one.unusable for name, one in runtimes.items() if one.unusable},
        )

    def with_defaults(self, of_project: ProjectDefaults) -> Self:
        """The policy for tasks of a project with these defaults. They never exceed the caps."""
        named = {"memory_mb": of_project.memory_mb, "cores": of_project.cores}
        wanted = {name: value for name, value in named.items() if value is not None}
        return replace(
            self,
            defaults=self.defaults.model_copy(update=wanted).capped(self.caps),
            attempt_seconds=of_project.attempt_seconds or self.attempt_seconds,
        )

    def limits(self, requested: SandboxLimits | None) -> SandboxLimits:
        """The requested limits, or the defaults if none are requested. If only cores are omitted, their default."""
        if requested is None or requested.cores is not None:
            return requested or self.defaults
        return requested.model_copy(update={"cores": self.defaults.cores})


@dataclass(frozen=True)
class ResolvedSpec:
    """A resolved spec."""

    runtime: str
    limits: SandboxLimits
    env: Mapping[str, str]
    """The profile's variables, overridden by the spec's."""


def resolve(spec: SandboxSpec, policy: SpawnPolicy) -> ResolvedSpec | Refusal:
    """The resolved spec, or why it is refused. The field of a refusal is a member of the spec: `spec.runtime`."""
    if spec.sealed is not None:
        return Refusal("its secrets are sealed for another herd, or differ from the names in secret_env", "spec.sealed")
    profile = policy.profiles.get(spec.profile) if spec.profile else Profile()
    if profile is None:
        others = _choice(policy.profiles, "no profile is configured")
        return Refusal(f"there is no profile {spec.profile!r} here; {others}", "spec.profile")
    runtime = spec.runtime or profile.runtime or policy.default_runtime
    unable = _absent(runtime, spec, policy) or _unable(runtime, spec, profile, policy)
    if unable:
        return unable
    limits = policy.limits(spec.limits or profile.limits)
    env = {name: value for name, value in profile.env.items() if name not in spec.secrets}
    return _excess(spec, limits, policy) or ResolvedSpec(runtime=runtime, limits=limits, env={**env, **spec.env})


def _absent(runtime: str, spec: SandboxSpec, policy: SpawnPolicy) -> Refusal | None:
    """Why this runtime does not exist here or can't be used, or None."""
    field = "spec.profile" if spec.profile and not spec.runtime else "spec.runtime"
    usable = _choice(policy.runtimes - policy.unusable.keys(), "no runtime can be used")
    if runtime not in policy.runtimes:
        return Refusal(f"there is no runtime {runtime!r} here; {usable}", field)
    if runtime in policy.unusable:
        return Refusal(f"runtime {runtime} can't be used: {policy.unusable[runtime]}; {usable}", field)
    return None


def _unable(runtime: str, spec: SandboxSpec, profile: Profile, policy: SpawnPolicy) -> Refusal | None:
    """Why this runtime can't run the spec, or None."""
    if spec.image and runtime in policy.imageless:
        others = _choice(policy.runtimes - policy.imageless, "no runtime here does")
        message = f"runtime {runtime} does not support images"
        return Refusal(f"{message}; {others}", "spec.image")
    if profile.mounts and runtime in policy.mountless:
        return Refusal(f"runtime {runtime} does not support the mounts of profile {spec.profile!r}", "spec.profile")
    if runtime in policy.volumes_only and (folder := next((one for one in profile.mounts if one.is_folder), None)):
        message = f"profile {spec.profile!r} mounts {folder.source}, a folder of a host: not possible in {runtime}"
        return Refusal(f"{message}; name a PersistentVolumeClaim or another volume instead", "spec.profile")
    requested = spec.limits or profile.limits
    if requested and requested.cores and runtime in policy.coreless:
        message = f"cores: runtime {runtime} does not enforce a limit on cores: omit it, or choose another runtime"
        return Refusal(message, "spec.limits.cores" if spec.limits else "spec.profile")
    return None


def _excess(spec: SandboxSpec, limits: SandboxLimits, policy: SpawnPolicy) -> Refusal | None:
    """The refusal of the first limit that is too high or too low, or None."""
    too_much = beyond(limits, policy.caps)
    if too_much:
        return Refusal(too_much.reason, f"spec.limits.{too_much.field}")
    if spec.agent_server is not None and limits.memory_mb < SERVER_MEMORY_MB:
        message = f"an agent server needs {SERVER_MEMORY_MB} MiB; this sandbox has {limits.memory_mb}"
        return Refusal(f"memory_mb: {message}", "spec.limits.memory_mb")
    if spec.ttl_seconds is not None and spec.ttl_seconds > policy.max_ttl:
        text = f"a lifetime of {duration_text(spec.ttl_seconds)} was requested"
        return Refusal(f"{text}; at most {duration_text(policy.max_ttl)} is allowed here", "spec.ttl_seconds")
    return None


def beyond(limits: SandboxLimits, caps: SandboxLimits) -> Refusal | None:
    """The refusal of the first limit that is above its cap, or None."""
    name = limits.exceeded_limit(caps)
    if name is None:
        return None
    requested, cap = getattr(limits, name), getattr(caps, name)
    return Refusal(f"{name}: {requested} requested; at most {cap} is allowed here", name)


def project_refusal(project: str) -> Refusal | None:
    """Why this project name is refused, or None."""
    return Refusal(f"{FLEET!r} means all projects; it is not a project", "project") if project == FLEET else None


def expiry(spec: SandboxSpec, policy: SpawnPolicy, now: datetime) -> datetime:
    """When a sandbox of this spec expires if it is requested now."""
    return now + timedelta(seconds=min(spec.ttl_seconds or policy.usual_ttl, policy.max_ttl))


def same_as_profile(limits: SandboxLimits, profile: str | None, policy: SpawnPolicy) -> bool:
    """Whether these limits equal those of the profile, with which its warm sandboxes are created."""
    kind = policy.profiles.get(profile) if profile else None
    return kind is not None and limits == policy.limits(kind.limits)


def _choice(names: Collection[str], absent: str) -> str:
    """The existing names as text, or `absent` if there are none."""
    return f"there is: {', '.join(sorted(names))}" if names else absent
