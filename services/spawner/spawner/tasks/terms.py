"""What a task is given: resolved once, at its submission, so that a later change of the settings does not change it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sandherd.contracts.commands import SubmitTask
from sandherd.contracts.specs import Limits, TaskSpec
from spawner.resolving import Menu, Refusal, project_refusal, resolve

_SANDBOX_PREFIX: Final = "sbx-"


@dataclass(frozen=True)
class Terms:
    """What was resolved. `env` is the profile's under the task's own."""

    runtime: str = "process"
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    max_attempts: int = 3
    attempt_seconds: float | None = None
    keep_secrets: float = 0

    def whole(self, spec: TaskSpec) -> TaskSpec:
        """The spec with the variables that its profile gives."""
        return spec.model_copy(update={"env": {**self.env, **spec.env}})


PLAIN: Final = Terms()
"""What a task is given that wishes nothing, where nothing is set."""


def terms_of(project: str, submit: SubmitTask, menu: Menu) -> Terms | Refusal:
    """What this task is given here, or why it can't be taken."""
    unnamed = project_refusal(project) or name_refusal(submit.task)
    if unnamed:
        return unnamed
    resolved = resolve(submit.spec, menu)
    if isinstance(resolved, Refusal):
        return resolved
    return Terms(
        runtime=resolved.runtime,
        limits=resolved.limits,
        env=resolved.env,
        max_attempts=submit.spec.retry.max_attempts or menu.max_attempts,
        attempt_seconds=submit.spec.attempt_seconds or menu.attempt_seconds,
        keep_secrets=menu.keep_secrets,
    )


def name_refusal(task: str) -> Refusal | None:
    """Why no task may be called so, or None."""
    if task.startswith(_SANDBOX_PREFIX):
        return Refusal(f"a task's name may not begin with {_SANDBOX_PREFIX!r}", "task")
    return None
