"""What can be known before anything is sent: whether the herd has what a spec names. Pure; the spawner decides."""

from collections.abc import Collection

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import Catalogue
from sandherd.contracts.specs import Limits, SandboxSpec, TaskSpec

_LOOK = "see `sandherd runtimes`"
_OPTIONS = {"memory_mb": "--memory", "cores": "--cores"}


def refusal(spec: SandboxSpec, here: Catalogue) -> HerdError | None:
    """Why the spawner will not take this, saying what is allowed; None if nothing speaks against it."""
    runtimes = [runtime.runtime for runtime in here.runtimes]
    return (
        _unknown("runtime", spec.runtime, runtimes)
        or _unknown("profile", spec.profile, here.profiles)
        or _harness(spec, here)
        or _beyond(spec.limits, here.caps)
        or _too_long(spec.ttl_seconds, here.max_ttl_seconds)
        or _too_often(spec, here.max_attempts)
    )


def _unknown(field: str, asked: str | None, there: Collection[str]) -> HerdError | None:
    if asked is None or asked in there:
        return None
    names = ", ".join(sorted(there)) or "none"
    remedy = f"name another one with --{field}" if there else f"leave --{field} out"
    return _error(f"there is no {field} {asked!r} here; there is: {names}", f"spec.{field}", remedy)


def _harness(spec: SandboxSpec, here: Catalogue) -> HerdError | None:
    return _unknown("harness", spec.harness.kind, here.harnesses) if isinstance(spec, TaskSpec) else None


def _beyond(limits: Limits | None, caps: Limits) -> HerdError | None:
    if limits is None:
        return None
    name = limits.beyond(caps)
    if name is None or getattr(limits, name) is None:
        return None
    asked, cap = getattr(limits, name), getattr(caps, name)
    remedy = f"ask for less with {_OPTIONS[name]}" if name in _OPTIONS else _LOOK
    return _error(f"{name}: {asked} asked for; at most {cap} is allowed here", f"spec.limits.{name}", remedy)


def _too_long(asked: int | None, most: int) -> HerdError | None:
    if asked is None or asked <= most:
        return None
    message = f"ttl_seconds: {asked} asked for; at most {most} are allowed here"
    return _error(message, "spec.ttl_seconds", "ask for less with --ttl, and extend it later")


def _too_often(spec: SandboxSpec, most: int) -> HerdError | None:
    asked = spec.retry.max_attempts if isinstance(spec, TaskSpec) else None
    if asked is None or asked <= most:
        return None
    message = f"max_attempts: {asked} asked for; at most {most} are allowed here"
    return _error(message, "spec.retry.max_attempts", "ask for less with --attempts")


def _error(message: str, field: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field=field, remedy=remedy)
