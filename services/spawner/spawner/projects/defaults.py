"""Applies a project's defaults to a task at its submission. All functions are pure.

The defaults are stored beside the spec, not in it. So a repeated submission is recognized by its spec even if a default
has changed since, and a retry has the defaults of the first attempt.
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
    """The project's defaults that a task has, without limits and times, which are fields of the task's record."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    harness: SafeName | None = None
    model: ModelName | None = None
    image: Image | None = None
    repository: ProjectRepository | None = None
    max_intervention: SteeringStep | None = None
    """The strongest permitted step of the guardian, from the profile, else from the project."""


NOTHING: Final = AppliedDefaults()
"""The value for a task without any defaults of its project."""


def applicable_defaults(
    project: str,
    spec: TaskSpec,
    defaults: ProjectDefaults,
    *,
    has_images: bool,
    profile_step: SteeringStep | None = None,
) -> AppliedDefaults | Refusal:
    """The defaults that apply to this spec, or why the task is refused.

    `has_images`: the task's runtime uses images. `profile_step`: the `max_intervention` of its profile.
    """
    uses_default_harness = spec.harness.kind == PROJECT_DEFAULT
    if uses_default_harness and defaults.harness is None:
        operator = f"an operator sets one with `sandherd projects set {project} --harness`"
        return Refusal(f"project {project} has no default harness; {operator}", "spec.harness")
    applicable = AppliedDefaults(
        harness=defaults.harness if uses_default_harness else None,
        image=defaults.image if has_images and spec.image is None else None,
        repository=None if _excludes_default_repository(spec) else defaults.repository,
        max_intervention=profile_step or defaults.max_intervention,
    )
    try:
        harness = with_defaults(spec, applicable).harness
    except ValidationError as error:
        problem = ContractError.from_validation(error).problem
        return Refusal(problem.message, f"spec.{problem.field}" if problem.field else "spec.harness")
    return applicable.model_copy(update={"model": defaults.model}) if _lacks_model(harness) else applicable


def with_defaults(spec: TaskSpec, defaults: AppliedDefaults) -> TaskSpec:
    """The spec with these defaults. Raises `ValidationError` if the default harness refuses the spec's options."""
    if defaults == NOTHING:
        return spec
    if defaults.harness is not None and isinstance(spec.harness, PluginHarness):
        options = {"kind": defaults.harness, **spec.harness.fields}
        spec = TaskSpec.model_validate({**spec.model_dump(exclude={"harness"}), "harness": options})
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


def _excludes_default_repository(spec: TaskSpec) -> bool:
    """Whether the task has its own repository, uploaded files or an earlier task to resume, or wants no repository."""
    return spec.no_repository or not (spec.repository is None and spec.work is None and spec.resume is None)


def _lacks_model(harness: AnyHarness) -> bool:
    """Whether the harness has a model option that is not set. False for plugins, whose options are unknown here."""
    return "model" in type(harness).model_fields and getattr(harness, "model", None) is None
