"""Refuses tasks without a harness in a project without a default harness, before any task of a batch is sent."""

from collections.abc import Mapping

from sandherd.client.errors import HerdError, ServiceUnavailableError
from sandherd.client.queries import SendRequest
from sandherd.contracts.errors import Code
from sandherd.contracts.harnesses import PROJECT_DEFAULT
from sandherd.contracts.labels import NAME_LABEL
from sandherd.contracts.requests import ListProjects, ProjectView
from sandherd.contracts.specs import TaskSpec


async def require_harness(send: SendRequest, project: str, tasks: Mapping[str, TaskSpec]) -> None:
    """Raise `HerdError` (`invalid_field`) for the first task without a harness, if the project has no default one.

    If the spawner is unavailable, nothing is checked here, because the spawner checks the tasks later.
    """
    incomplete = [task for task, spec in tasks.items() if spec.harness.kind == PROJECT_DEFAULT]
    if not incomplete:
        return
    try:
        known: list[ProjectView] = (await send(ListProjects())).projects
    except ServiceUnavailableError:
        return
    if any(view.project == project and view.defaults.harness is None for view in known):
        label = tasks[incomplete[0]].labels.get(NAME_LABEL, incomplete[0])
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{label}: it has neither `argv` nor `harness`, and project {project} has no default harness",
            field="harness",
            remedy=f"add one, or let an operator set a default: `sandherd projects set {project} --harness KIND`",
        )
