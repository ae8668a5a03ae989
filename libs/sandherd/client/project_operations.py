"""Operations on projects and budgets: list them with limits and defaults; create or change one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sandherd.client import queries
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, checked_name, validated
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_uuid
from sandherd.contracts.states import TaskState

if TYPE_CHECKING:
    from sandherd.contracts.requests import ProjectField


class ProjectOperations:
    """The project methods of `Herd`. Every method raises `HerdError`."""

    connection: Connection

    async def projects(self) -> "list[requests.ProjectView]":
        """The connection's project; with a connection for all projects, those that the spawner knows."""
        return (await self.connection.request(requests.ListProjects())).projects

    async def project_view(self) -> "requests.ProjectView":
        """The connection's project, with its limits in effect; also if it has no record."""
        for view in await self.projects():
            if view.project == self.connection.project:
                return view
        raise HerdError.of(
            Code.INTERNAL, "the spawner's reply lacks the project", field="project", remedy="update the herd's services"
        )

    async def budgets(self, task: str | None = None) -> "requests.BudgetList":
        """The limits of the connection's project and its tasks, or of one task, and how much of each is used.

        With a connection for all projects, those of all projects and of the herd. Raises `HerdError` (`not_found`) for
        an unknown task.
        """
        reply = await self.connection.request(validated(requests.ListBudgets, task=task))
        if task is not None and not any(budget.used or budget.granted for budget in reply.budgets):
            await self._state_of(task)
        return reply

    async def grant_budget(
        self, task: str, more: "str | Mapping[str, Any]", *, name: str | None = None, by: str | None = None
    ) -> "requests.BudgetList":
        """Increase the budget of a task by `more`: a text such as `cost=2usd,turns=20`, or fields of `BudgetLimits`.

        Another grant with the same `name` has no effect. Raises `HerdError` (`conflict`) if the task is completed, or
        has no limit of a granted kind. A failed or cancelled task can use the grant after `retry`.
        """
        if await self._state_of(task) is TaskState.COMPLETED:
            message, remedy = f"{task} is completed: it can use nothing more", f"see `sandherd tasks get {task}`"
            raise HerdError.of(Code.CONFLICT, message, field="task", remedy=remedy)
        grant = name or f"grant-{new_uuid().hex}"
        return await self.connection.request(
            validated(requests.GrantBudget, task=task, grant=grant, more=more, granted_by=by)
        )

    async def _state_of(self, task: str) -> TaskState | None:
        """The state of a task. None if this client has submitted it and it is not accepted yet, or if it can't be read.

        Raises `HerdError` (`not_found`) for an unknown task.
        """
        name = checked_name(task, "task")
        try:
            return (await queries.task(self.connection.request, name)).state
        except HerdError as error:
            if error.problem.code is Code.NOT_FOUND and not self.connection.creations.of("task", name):
                raise
            return None

    async def set_budget(
        self,
        *,
        day: "str | Mapping[str, Any] | None" = None,
        month: "str | Mapping[str, Any] | None" = None,
        by: str | None = None,
    ) -> "requests.BudgetList":
        """Set the limits of the connection's project; with a connection for all projects, those of the herd.

        Needs an operator's credential. A limit that is not given is reset to the value in the herd's settings.
        """
        limits = {"day": day or {}, "month": month or {}}
        return await self.connection.request(validated(requests.SetBudget, limits=limits, updated_by=by))

    async def create_project(
        self,
        *,
        limits: Mapping[str, int] | None = None,
        defaults: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> "requests.ProjectView":
        """Create the connection's project. `limits` has fields of `ProjectLimits`, `defaults` of `ProjectDefaults`.

        Needs an operator's credential. Creating the same project again changes nothing.
        """
        return await self._set(new=True, limits=limits, defaults=defaults, by=by)

    async def set_project(
        self,
        *,
        limits: Mapping[str, int] | None = None,
        defaults: Mapping[str, Any] | None = None,
        unset: "Sequence[ProjectField]" = (),
        by: str | None = None,
    ) -> "requests.ProjectView":
        """Change limits and defaults of the connection's project. Others are not changed; those of `unset` are removed.

        Needs an operator's credential. A limit is in effect at once, a default for tasks that are submitted later.
        """
        return await self._set(new=False, limits=limits, defaults=defaults, unset=unset, by=by)

    async def _set(
        self,
        *,
        new: bool,
        limits: Mapping[str, int] | None,
        defaults: Mapping[str, Any] | None,
        unset: "Sequence[ProjectField]" = (),
        by: str | None,
    ) -> "requests.ProjectView":
        request = validated(
            requests.SetProject,
            new=new,
            limits=dict(limits or {}),
            defaults=dict(defaults or {}),
            unset=list(unset),
            updated_by=by,
        )
        return await self.connection.request(request)
