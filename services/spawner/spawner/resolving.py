"""What a spec comes to here: where it runs, what it may use, and what it finds; or why it can't be had. All pure.

A value comes from the spec itself, else from its profile, else from the herd's settings.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Self

from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import Profile
from sandherd.contracts.serving import SERVER_MEMORY_MB
from sandherd.contracts.specs import Limits, SandboxSpec
from sandherd.settings import Settings
from spawner.runtimes.contract import NOT_HELD, Capabilities

_MB_PER_GB: Final = 1024


@dataclass(frozen=True)
class Refusal:
    """Why something can't be had: what is allowed, and the field that asked for more."""

    reason: str
    field: str


@dataclass(frozen=True)
class Menu:
    """What may be asked for here. Times are in seconds."""

    runtimes: frozenset[str]
    default_runtime: str
    defaults: Limits
    caps: Limits
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    keep_secrets: float = 0
    """How many seconds the secrets of a task that failed or was cancelled are stored."""
    max_attempts: int = 1
    """How often a task is tried that does not say so itself."""
    attempt_seconds: float | None = None
    usual_ttl: float = 43_200
    max_ttl: float = 604_800
    imageless: frozenset[str] = frozenset()
    """Runtimes that make sandboxes of no image."""
    mountless: frozenset[str] = frozenset()
    """Runtimes that can mount nothing."""
    coreless: frozenset[str] = frozenset()
    """Runtimes that hold a sandbox to no number of cores."""

    @classmethod
    def of(cls, settings: Settings, runtimes: Mapping[str, Capabilities]) -> Self:
        """What these settings and runtimes allow. The usual is never more than what is allowed."""
        usual = Limits(memory_mb=int(settings.sandbox_memory_gb * _MB_PER_GB), cores=settings.sandbox_cores)
        return cls(
            runtimes=frozenset(runtimes),
            default_runtime=settings.runtime,
            defaults=usual.at_most(settings.caps),
            caps=settings.caps,
            profiles=settings.profiles,
            keep_secrets=settings.keep_secrets,
            max_attempts=settings.max_attempts,
            attempt_seconds=settings.attempt_timeout,
            usual_ttl=min(settings.max_age, settings.max_ttl),
            max_ttl=settings.max_ttl,
            imageless=frozenset(name for name, able in runtimes.items() if not able.images),
            mountless=frozenset(name for name, able in runtimes.items() if not able.mounts),
            coreless=frozenset(name for name, able in runtimes.items() if able.cores == NOT_HELD),
        )

    def limits(self, asked: Limits | None) -> Limits:
        """What was asked for, or the usual; and the usual number of cores where only that was left out."""
        if asked is None or asked.cores is not None:
            return asked or self.defaults
        return asked.model_copy(update={"cores": self.defaults.cores})


@dataclass(frozen=True)
class Resolved:
    """What a spec comes to."""

    runtime: str
    limits: Limits
    env: Mapping[str, str]
    """The profile's variables under the spec's own."""


def resolve(spec: SandboxSpec, menu: Menu) -> Resolved | Refusal:
    """What this spec comes to, or why it can't be had. The field names a member of the spec, as `spec.runtime`."""
    if spec.sealed is not None:
        return Refusal("its secrets are sealed for another herd, or not as their names say", "spec.sealed")
    profile = menu.profiles.get(spec.profile) if spec.profile else Profile()
    if profile is None:
        return Refusal(f"there is no profile {spec.profile!r} here; {_choice(menu.profiles)}", "spec.profile")
    runtime = spec.runtime or profile.runtime or menu.default_runtime
    if runtime not in menu.runtimes:
        asked = "spec.profile" if spec.profile and not spec.runtime else "spec.runtime"
        return Refusal(f"there is no runtime {runtime!r} here; {_choice(menu.runtimes)}", asked)
    unable = _unable(runtime, spec, profile, menu)
    if unable:
        return unable
    limits = menu.limits(spec.limits or profile.limits)
    env = {name: value for name, value in profile.env.items() if name not in spec.secrets}
    return _excess(spec, limits, menu) or Resolved(runtime=runtime, limits=limits, env={**env, **spec.env})


def _unable(runtime: str, spec: SandboxSpec, profile: Profile, menu: Menu) -> Refusal | None:
    """What this runtime can't do at all, or None."""
    if spec.image and runtime in menu.imageless:
        others = _choice(menu.runtimes - menu.imageless)
        told = f"runtime {runtime} makes no sandboxes of images: leave the image out, or name a runtime that does"
        return Refusal(f"{told}; {others}", "spec.image")
    if profile.mounts and runtime in menu.mountless:
        return Refusal(f"runtime {runtime} can't mount what profile {spec.profile!r} mounts", "spec.profile")
    asked = spec.limits or profile.limits
    if asked and asked.cores and runtime in menu.coreless:
        told = f"cores: runtime {runtime} holds a sandbox to no number of cores: leave it out, or name another runtime"
        return Refusal(told, "spec.limits.cores" if spec.limits else "spec.profile")
    return None


def _excess(spec: SandboxSpec, limits: Limits, menu: Menu) -> Refusal | None:
    """What it is given too much or too little of, or None."""
    too_much = beyond(limits, menu.caps)
    if too_much:
        return Refusal(too_much.reason, f"spec.limits.{too_much.field}")
    if spec.agent_server is not None and limits.memory_mb < SERVER_MEMORY_MB:
        told = f"an agent server needs {SERVER_MEMORY_MB} MiB; this sandbox is given {limits.memory_mb}"
        return Refusal(f"memory_mb: {told}", "spec.limits.memory_mb")
    if spec.ttl_seconds is not None and spec.ttl_seconds > menu.max_ttl:
        return Refusal(f"ttl_seconds: at most {menu.max_ttl:g} are allowed here", "spec.ttl_seconds")
    return None


def beyond(limits: Limits, caps: Limits) -> Refusal | None:
    """The first limit that is above its cap, or None."""
    name = limits.beyond(caps)
    if name is None:
        return None
    asked, cap = getattr(limits, name), getattr(caps, name)
    return Refusal(f"{name}: {asked} asked for; at most {cap} is allowed here", name)


def project_refusal(project: str) -> Refusal | None:
    """Why nothing can be had for this project, or None."""
    return Refusal(f"{FLEET!r} stands for all projects and is none", "project") if project == FLEET else None


def expiry(spec: SandboxSpec, menu: Menu, now: datetime) -> datetime:
    """When a sandbox of this spec that is requested now has lived long enough."""
    return now + timedelta(seconds=min(spec.ttl_seconds or menu.usual_ttl, menu.max_ttl))


def same_as_profile(limits: Limits, profile: str | None, menu: Menu) -> bool:
    """Whether these are the limits that the profile's warm sandboxes were started with."""
    kind = menu.profiles.get(profile) if profile else None
    return kind is not None and limits == menu.limits(kind.limits)


def _choice(names: Collection[str]) -> str:
    return f"there is: {', '.join(sorted(names))}" if names else "there are none"
