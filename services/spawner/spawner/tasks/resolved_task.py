"""A task's settings, resolved once at its submission, so that later changes of the settings do not affect it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.commands import SubmitTask
from sandherd.contracts.constraints import Constraints, merged
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import SANDBOX_PREFIX, UnsafeNameError
from sandherd.contracts.repositories import SHARED_BUNDLES
from sandherd.contracts.requests import ProjectDefaults
from sandherd.contracts.specs import SandboxLimits, TaskSpec
from sandherd.contracts.subjects import ARTIFACT
from spawner.projects.defaults import NOTHING, AppliedDefaults, applicable_defaults
from spawner.spec_resolution import Refusal, SpawnPolicy, project_refusal, resolve

NO_DEFAULTS: Final = ProjectDefaults()
"""The defaults of a project without a record."""


@dataclass(frozen=True)
class ResolvedTask:
    """The resolved settings. `env` has the variables of the profile, overridden by those of the task."""

    runtime: str = "process"
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    budget: BudgetLimits | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    max_attempts: int = 3
    attempt_seconds: float | None = None
    keep_secrets: float = 0
    constraints: Constraints | None = None
    """The constraints of its spec, its project, its profile and the herd together."""
    defaults: AppliedDefaults = NOTHING
    """The project's defaults for what the spec omits, other than limits and times."""

    def full_spec(self, spec: TaskSpec) -> TaskSpec:
        """The spec, with the variables of the profile added."""
        return spec.model_copy(update={"env": {**self.env, **spec.env}})


DEFAULT_SETTINGS: Final = ResolvedTask()
"""The resolved settings of a task that requests nothing in a herd without settings."""


def resolve_task(
    project: str, submit: SubmitTask, herd: SpawnPolicy, defaults: ProjectDefaults = NO_DEFAULTS
) -> ResolvedTask | Refusal:
    """The task's resolved settings in a project with these defaults, or why it is refused."""
    invalid_name = project_refusal(project) or name_refusal(submit.task)
    if invalid_name:
        return invalid_name
    policy = herd.with_defaults(defaults)
    resolved = resolve(submit.spec, policy)
    if isinstance(resolved, Refusal):
        return resolved
    profile = policy.profiles.get(submit.spec.profile) if submit.spec.profile else None
    used = applicable_defaults(
        project,
        submit.spec,
        defaults,
        has_images=resolved.runtime not in policy.imageless,
        profile_step=profile.max_intervention if profile else None,
    )
    if isinstance(used, Refusal):
        return used
    constraints = _constraints(submit.spec, policy, defaults)
    if isinstance(constraints, Refusal):
        return constraints
    return ResolvedTask(
        runtime=resolved.runtime,
        limits=resolved.limits,
        budget=submit.spec.budget or (profile.budget if profile else None),
        env=resolved.env,
        max_attempts=submit.spec.retry.max_attempts or policy.max_attempts,
        attempt_seconds=submit.spec.attempt_seconds or policy.attempt_seconds,
        keep_secrets=policy.keep_secrets,
        constraints=constraints,
        defaults=used,
    )


def _constraints(spec: TaskSpec, policy: SpawnPolicy, defaults: ProjectDefaults) -> Constraints | Refusal | None:
    profile = policy.profiles.get(spec.profile) if spec.profile else None
    levels = (policy.constraints, profile.constraints if profile else None, defaults.constraints, spec.constraints)
    try:
        return merged(levels)
    except ValueError as error:
        return Refusal(str(error), "spec.constraints")


def work_refusal(project: str, submit: SubmitTask) -> Refusal | None:
    """Why the upload with which the task begins is refused, or None.

    It must be stored under the task's own name. The bundle of a repository may also be one that several tasks share.
    """
    work = uploaded(submit.spec)
    field = "spec.work" if submit.spec.work else "spec.repository.bundle"
    if work is None:
        return None
    with suppress(UnsafeNameError):
        owners = (submit.task, *(() if submit.spec.work else (SHARED_BUNDLES,)))
        if work.subject in {ARTIFACT.fill(project=project, sandbox=one, artifact=work.artifact) for one in owners}:
            return None
    return Refusal(f"{work.artifact[:80]} was not uploaded for {submit.task}", field)


def uploaded(spec: TaskSpec) -> ArtifactRef | None:
    """The upload with which a task begins: an archive of files, the bundle of a local repository, or None."""
    return spec.work or (spec.repository.bundle if spec.repository else None)


def own_upload(project: str, submit: SubmitTask) -> ArtifactRef | None:
    """The upload that is stored under this task's own name; None if there is none, or it is shared or refused."""
    found = uploaded(submit.spec)
    if found is None or work_refusal(project, submit) is not None:
        return None
    return (
        found if found.subject == ARTIFACT.fill(project=project, sandbox=submit.task, artifact=found.artifact) else None
    )


def name_refusal(task: str) -> Refusal | None:
    """Why this task name is invalid, or None."""
    if task == SHARED_BUNDLES:
        return Refusal(f"{task!r} is not a name of a task: it is used for uploads", "task")
    if task.startswith(SANDBOX_PREFIX):
        return Refusal(f"a task's name may not begin with {SANDBOX_PREFIX!r}", "task")
    return None
