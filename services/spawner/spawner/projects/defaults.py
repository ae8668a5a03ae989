"""Applies a project's defaults to a task at its submission. All functions are pure.

They are stored beside the spec and not in it: a repeated submission is recognized by its spec, also after a default
has changed, and a retry has the defaults of the first attempt.
"""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from sandherd.contracts.errors import ContractError
from sandherd.contracts.events.monitor import SteeringStep
from sandherd.contracts.harnesses import PROJECT_DEFAULT, AnyHarness, ModelName, PluginHarness
from sandherd.contracts.names import SafeName
from sandherd.contracts.repositories import ProjectRepository, Repository
from sandherd.contracts.requests import ProjectDefaults
from sandherd.contracts.specs import Image, TaskSpec
from spawner.spec_resolution import Refusal


class AppliedDefaults(BaseModel):
    """What a task has from its project's defaults. Limits and times are resolved with those of the settings."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    harness: SafeName | None = None
    model: ModelName | None = None
    image: Image | None = None
    repository: ProjectRepository | None = None
    max_intervention: SteeringStep | None = None
    """By the profile, or else the project."""


NOTHING: Final = AppliedDefaults()


def applied(
    project: str,
    spec: TaskSpec,
    defaults: ProjectDefaults,
    *,
    has_images: bool,
    of_profile: SteeringStep | None = None,
) -> AppliedDefaults | Refusal:
    """What of the defaults applies to the spec, or why the task is refused. `of_profile` is its profile's maximum."""
    wants_kind = spec.harness.kind == PROJECT_DEFAULT
    if wants_kind and defaults.harness is None:
        operator = f"an operator sets one with `sandherd projects set {project} --harness`"
        return Refusal(f"project {project} has no default harness; {operator}", "spec.harness")
    found = AppliedDefaults(
        harness=defaults.harness if wants_kind else None,
        image=defaults.image if has_images and spec.image is None else None,
        repository=None if _has_tree(spec) else defaults.repository,
        max_intervention=of_profile or defaults.max_intervention,
    )
    try:
        harness = with_defaults(spec, found).harness
    except ValidationError as error:
        problem = ContractError.from_validation(error).problem
        return Refusal(problem.message, f"spec.{problem.field}" if problem.field else "spec.harness")
    return found.model_copy(update={"model": defaults.model}) if _lacks_model(harness) else found


def with_defaults(spec: TaskSpec, defaults: AppliedDefaults) -> TaskSpec:
    """The spec with these defaults. Raises `ValidationError` if the default kind of agent refuses its fields."""
    if defaults == NOTHING:
        return spec
    if defaults.harness is not None and isinstance(spec.harness, PluginHarness):
        named = {"kind": defaults.harness, **spec.harness.fields}
        spec = TaskSpec.model_validate({**spec.model_dump(exclude={"harness"}), "harness": named})
    harness = spec.harness
    if defaults.model and _lacks_model(harness):
        harness = harness.model_copy(update={"model": defaults.model})
    update: dict[str, Any] = {"harness": harness, "image": defaults.image or spec.image}
    return spec.model_copy(update=update | {"repository": repository_of(spec, defaults)})


def repository_of(spec: TaskSpec, defaults: AppliedDefaults) -> Repository | None:
    """The repository that a task works on: its own, or the default one."""
    if spec.repository is not None or defaults.repository is None:
        return spec.repository
    return defaults.repository.of_task()


def _has_tree(spec: TaskSpec) -> bool:
    """Whether the task begins with something else than a default repository, or wants none."""
    return spec.no_repository or not (spec.repository is None and spec.work is None and spec.resume is None)


def _lacks_model(harness: AnyHarness) -> bool:
    """Whether its kind has a model, and none is set. The fields of a plugin's kind are its own."""
    return "model" in type(harness).model_fields and getattr(harness, "model", None) is None
