"""Checks a spec against the herd's catalogue before it is sent. Pure; the final decision is the spawner's."""

from collections.abc import Collection

from sandherd.client.errors import HerdError
from sandherd.contracts.durations import duration_text
from sandherd.contracts.errors import Code
from sandherd.contracts.harnesses import PROJECT_DEFAULT
from sandherd.contracts.requests import Catalogue
from sandherd.contracts.specs import SandboxLimits, SandboxSpec, TaskSpec

_SEE_RUNTIMES = "see `sandherd runtimes`"
_OPTIONS = {"memory_mb": "--memory", "cores": "--cores"}


def refusal(spec: SandboxSpec, catalogue: Catalogue) -> HerdError | None:
    """The error if the spawner would reject a spec, with the permitted values; None if the spec is acceptable."""
    runtimes = [runtime.runtime for runtime in catalogue.runtimes]
    return (
        _unknown_error("runtime", spec.runtime, runtimes)
        or _unknown_error("profile", spec.profile, catalogue.profiles)
        or _unknown_harness(spec, catalogue)
        or _exceeded_limit(spec.limits, catalogue.caps)
        or _excessive_ttl(spec.ttl_seconds, catalogue.max_ttl_seconds)
        or _excessive_attempts(spec, catalogue.max_attempts)
    )


def _unknown_error(field: str, value: str | None, known_names: Collection[str]) -> HerdError | None:
    if value is None or value in known_names:
        return None
    names = ", ".join(sorted(known_names)) or "none"
    remedy = f"name another one with --{field}" if known_names else f"omit --{field}"
    return _error(f"there is no {field} {value!r} here; there is: {names}", f"spec.{field}", remedy)


def _unknown_harness(spec: SandboxSpec, catalogue: Catalogue) -> HerdError | None:
    if not isinstance(spec, TaskSpec) or spec.harness.kind == PROJECT_DEFAULT:
        return None
    return _unknown_error("harness", spec.harness.kind, catalogue.harnesses)


def _exceeded_limit(limits: SandboxLimits | None, caps: SandboxLimits) -> HerdError | None:
    if limits is None:
        return None
    name = limits.exceeded_limit(caps)
    if name is None or getattr(limits, name) is None:
        return None
    value, cap = getattr(limits, name), getattr(caps, name)
    remedy = f"request less with {_OPTIONS[name]}" if name in _OPTIONS else _SEE_RUNTIMES
    return _error(f"{name}: {value} requested; at most {cap} is allowed here", f"spec.limits.{name}", remedy)


def _excessive_ttl(value: int | None, limit: int) -> HerdError | None:
    return None if value is None or value <= limit else lifetime_error(value, limit, "spec.ttl_seconds", "--ttl")


def lifetime_error(value: int, limit: int, field: str, option: str) -> HerdError:
    """The error for a lifetime that is longer than the herd allows."""
    limit_text, requested_text = duration_text(limit), duration_text(value)
    message = f"a lifetime of {requested_text} was requested; at most {limit_text} is allowed here, with all extensions"
    return _error(message, field, f"use {option} {limit_text} or less")


def _excessive_attempts(spec: SandboxSpec, limit: int) -> HerdError | None:
    value = spec.retry.max_attempts if isinstance(spec, TaskSpec) else None
    if value is None or value <= limit:
        return None
    message = f"max_attempts: {value} requested; at most {limit} are allowed here"
    return _error(message, "spec.retry.max_attempts", "request less with --attempts")


def _error(message: str, field: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field=field, remedy=remedy)
