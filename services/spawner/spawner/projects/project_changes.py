"""Pure functions that change a project, and that check its limits and defaults."""

from datetime import datetime
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from sandherd.contracts.errors import Code
from sandherd.contracts.harnesses import HARNESSES
from sandherd.contracts.requests import ProjectDefaults, ProjectLimits, SetProject
from sandherd.contracts.specs import SandboxLimits
from spawner.projects.project_record import ProjectRecord
from spawner.spec_resolution import Refusal

ValuesT = TypeVar("ValuesT", ProjectLimits, ProjectDefaults)
_HARNESS_FIELD: Final = "defaults.harness"


def created(project: str, request: SetProject, now: datetime) -> ProjectRecord:
    """The record of a new project."""
    return ProjectRecord(
        project=project,
        limits=_without_unset(request.limits, request),
        defaults=_without_unset(request.defaults, request),
        created_at=now,
        updated_at=now,
        updated_by=request.updated_by,
    )


def changed(record: ProjectRecord, request: SetProject, now: datetime) -> ProjectRecord:
    """The record after the requested change; unchanged if it already has all requested values."""
    limits = _without_unset(_merged(record.limits, request.limits), request)
    defaults = _without_unset(_merged(record.defaults, request.defaults), request)
    if (limits, defaults) == (record.limits, record.defaults):
        return record
    update = {"limits": limits, "defaults": defaults, "updated_at": now, "updated_by": request.updated_by}
    return record.model_copy(update=update)


def same_values(record: ProjectRecord, other: ProjectRecord) -> bool:
    """Whether two records of a project have the same limits and defaults."""
    return (record.limits, record.defaults) == (other.limits, other.defaults)


def limits_refusal(limits: ProjectLimits, max_sandboxes: int) -> Refusal | None:
    """The refusal of the first limit that exceeds the herd's limit, or None."""
    for name in ("tasks", "sandboxes"):
        value = getattr(limits, name)
        if value is not None and value > max_sandboxes:
            text = f"{name}: {value} requested; at most {max_sandboxes} are allowed here (SANDHERD_MAX_SANDBOXES)"
            return Refusal(text, f"limits.{name}", Code.REFUSED)
    return None


def defaults_refusal(defaults: ProjectDefaults, caps: SandboxLimits, harnesses: list[str]) -> Refusal | None:
    """The refusal of these defaults, or None. `caps`: the maximum limits. `harnesses`: the kinds that this herd has."""
    for name in ("memory_mb", "cores"):
        value, cap = getattr(defaults, name), getattr(caps, name)
        if value is not None and cap is not None and value > cap:
            text = f"{name}: {value} requested; at most {cap} is allowed here (SANDHERD_CAPS)"
            return Refusal(text, f"defaults.{name}", Code.REFUSED)
    return _harness_refusal(defaults.harness, harnesses) if defaults.harness else None


def _harness_refusal(kind: str, harnesses: list[str]) -> Refusal | None:
    """The refusal of this kind of agent as a default, or None. A kind with required options is refused."""
    if kind not in harnesses:
        return Refusal(f"there is no harness {kind!r} here; there is: {', '.join(harnesses)}", _HARNESS_FIELD)
    options: type[BaseModel] | None = HARNESSES.get(kind)
    try:
        if options is not None:
            options.model_validate({"kind": kind})
    except ValidationError:
        return Refusal(
            f"{kind} needs a program with each task, so it can't be a default: name another harness", _HARNESS_FIELD
        )
    return None


def _merged(old: ValuesT, new: ValuesT) -> ValuesT:
    return old.model_copy(update=new.model_dump(exclude_none=True))


def _without_unset(values: ValuesT, request: SetProject) -> ValuesT:
    """The values without those that the request unsets."""
    unset: dict[str, None] = {name: None for name in request.unset if name in type(values).model_fields}
    return values.model_copy(update=unset)
