"""Handles requests about projects: list them, create or change one."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.repositories import ProjectRepository
from sandherd.contracts.requests import ListProjects, ProjectList, ProjectView, Request, SetProject
from sandherd.contracts.requests.projects import MAX_USERS
from sandherd.contracts.states import TaskState
from sandherd.service.requests import Answerer, IncomingRequest
from spawner.harness_plugins import HarnessPlugins
from spawner.live_state import LiveState
from spawner.projects import project_changes
from spawner.projects.project_record import ProjectRecord
from spawner.records.availability import available
from spawner.repositories.repository_hosts import RepositoryHosts
from spawner.spec_resolution import Refusal, SpawnPolicy
from spawner.tasks.capacity import Capacity

ANSWERED: Final[Mapping[type[Request[Any]], int]] = {ListProjects: 1, SetProject: 1}
"""The requests handled here, and the maximum of each that a replica handles concurrently."""
_RECORD_FIELDS: Final = ("created_at", "updated_at", "updated_by", "defaults")
"""The fields of a record that are copied to its view."""
MAX_PROJECTS: Final = 10_000
"""Maximum projects with a record."""


class ProjectRequestHandler:
    """The handlers of requests about projects. They raise `ContractError`."""

    def __init__(
        self,
        live: LiveState,
        capacity: Capacity,
        policy: SpawnPolicy,
        harnesses: HarnessPlugins,
        *,
        hosts: RepositoryHosts,
        max_sandboxes: int,
    ) -> None:
        """`max_sandboxes` is the limit of the herd. The limit of a project may not exceed it."""
        self._hosts = hosts
        self._live = live
        self._capacity = capacity
        self._policy = policy
        self._harnesses = harnesses
        self._max_sandboxes = max_sandboxes

    @property
    def handlers(self) -> dict[type[Request[Any]], Answerer]:
        """The handlers, one for each request in `ANSWERED`."""
        return {ListProjects: self.projects, SetProject: self.set_project}

    async def set_project(self, incoming: IncomingRequest[SetProject]) -> ProjectView:
        """Create or change a project. The change is in effect here when this returns, on other replicas soon after."""
        project, request = _single_project(incoming.project), incoming.request
        self._check(request)
        with available("projects"):
            record = await (self._create if request.new else self._change)(project, request)
            return self._view(project, record, await self._users([project]))

    async def projects(self, incoming: IncomingRequest[ListProjects]) -> ProjectList:
        """The requested project, even if it has no record, or all projects that this replica knows."""
        with available("projects"):
            await self._live.catch_up()
            records = {known.view.project: known.view for _, known in self._live.project_index.items()}
            names = (
                sorted(self._active_projects() | records.keys()) if incoming.project == FLEET else [incoming.project]
            )
            users = await self._users(names)
            return ProjectList(projects=[self._view(name, records.get(name), users) for name in names])

    async def _create(self, project: str, request: SetProject) -> ProjectRecord:
        record = project_changes.created(project, request, self._live.now())
        if len(self._live.project_index) >= MAX_PROJECTS:
            raise ContractError(
                Code.REFUSED, f"there are {MAX_PROJECTS} projects, the maximum", remedy="change an existing one"
            )
        held, _ = await self._live.projects.create(record)
        if not project_changes.same_values(held.record, record):
            remedy = f"change project {project}"
            raise ContractError(Code.CONFLICT, f"project {project} already exists", field="project", remedy=remedy)
        return held.record

    async def _change(self, project: str, request: SetProject) -> ProjectRecord:
        now = self._live.now()
        held = await self._live.projects.change(
            project, lambda record, _: project_changes.changed(record, request, now)
        )
        if held is None:
            remedy = f"create project {project}"
            raise ContractError(
                Code.NOT_FOUND, f"project {project} has no limits or defaults", field="project", remedy=remedy
            )
        return held.record

    def _check(self, request: SetProject) -> None:
        refused = project_changes.limits_refusal(
            request.limits, self._max_sandboxes
        ) or project_changes.defaults_refusal(request.defaults, self._policy.caps, self._harnesses.names)
        refused = refused or self._repository_refusal(request.defaults.repository)
        if refused:
            raise _contract_error(refused)

    def _repository_refusal(self, repository: ProjectRepository | None) -> Refusal | None:
        refused = None if repository is None else self._hosts.refusal(repository.of_task())
        if refused is None:
            return None
        # The project's field is named in place of the task's.
        return replace(
            refused, field=f"defaults.repository.{'git_proxy' if refused.field.endswith('git_proxy') else 'url'}"
        )

    def _active_projects(self) -> set[str]:
        """The projects that have tasks, live sandboxes, or a limit in the settings."""
        tasks = {key.partition(".")[0] for key, _ in self._live.task_index.items()}
        return tasks | self._capacity.projects()

    async def _users(self, projects: Iterable[str]) -> dict[str, set[str]]:
        """For each project, the ids of users who submitted a task that has a record, or who set a secret."""
        users: dict[str, set[str]] = {project: set() for project in projects}
        named = [(task.project, task.submitted_by) for task in self._live.task_index.views()]
        single = next(iter(users)) if len(users) == 1 else None
        named += [(secret.project, secret.updated_by) for secret in await self._live.secrets.all(single)]
        for project, user in named:
            if user and project in users:
                users[project].add(user)
        return users

    def _view(self, project: str, record: ProjectRecord | None, users: dict[str, set[str]]) -> ProjectView:
        stored = {} if record is None else {name: getattr(record, name) for name in _RECORD_FIELDS}
        tasks = (view for view in self._live.task_index.views() if view.project == project)
        return ProjectView(
            project=project,
            tasks=self._capacity.tasks_of(project),
            sandboxes=self._capacity.sandboxes_of(project),
            pending=sum(view.state is TaskState.PENDING for view in tasks),
            users=sorted(users[project])[:MAX_USERS],
            **stored,
        )


def _single_project(project: str) -> str:
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD, f"{FLEET!r} means all projects", field="project", remedy="name one project"
        )
    return project


def _contract_error(refused: Refusal) -> ContractError:
    return ContractError(refused.code, refused.reason, field=refused.field, remedy="give another value")
