"""Answers requests about budgets from the buckets, in every replica."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from monitor.bucket_entries import BucketWatch
from monitor.budgets.budget_decisions import line_of
from monitor.budgets.budget_ledger import MAX_GRANTS, ProjectLedger, TaskLedger, task_key, with_grant
from monitor.budgets.budget_messages import BudgetMessages
from monitor.budgets.budget_state import BudgetState, StoredLedger
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError
from sandherd.bus.kv import revision_headers
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET, new_uuid
from sandherd.contracts.requests import BudgetLine, BudgetList, GrantBudget, ListBudgets, Request, SetBudget
from sandherd.contracts.requests.budgets import MAX_LINES
from sandherd.service.requests import Answerer, IncomingRequest

_MAX_ATTEMPTS: Final = 10


class BudgetRequestHandler:
    """The handlers of requests about budgets. Raise `ContractError`."""

    def __init__(
        self, bus: Bus, state: BudgetState, watches: tuple[BucketWatch, ...], messages: BudgetMessages
    ) -> None:
        self._bus = bus
        self._state = state
        self._watches = watches
        self._messages = messages

    @property
    def handlers(self) -> dict[type[Request[Any]], Answerer]:
        """The handlers, one for each request."""
        return {ListBudgets: self.budgets, GrantBudget: self.grant, SetBudget: self.set}

    async def budgets(self, incoming: IncomingRequest[ListBudgets]) -> BudgetList:
        """The budgets of a project and its tasks, or of one task; for `fleet`, of all projects and of the herd."""
        now, task = await self._catch_up(), incoming.request.task
        if task is not None:
            return BudgetList(budgets=self._of_task(_single_project(incoming.project), task, now))
        names = self._state.project_names() if incoming.project == FLEET else [incoming.project]
        lines = self._of_herd(now) if incoming.project == FLEET else []
        lines += [line for name in names for line in self._of_project(name, now)]
        for project, name in self._state.known_tasks():
            if project in names:
                lines += self._of_task(project, name, now)
        limited = _limited_list(lines)
        if len(limited) > MAX_LINES:
            limited = sorted(limited, key=lambda line: -line.used / (line.limit or 1))[:MAX_LINES]
        return BudgetList(budgets=limited)

    async def of_sandbox(self, project: str, task: str) -> list[BudgetLine]:
        """The limits that apply to a task's sandboxes: the task's usage of each kind, and the limits of its project."""
        now = await self._catch_up()
        return self._of_task(project, task, now) + _limited_list(self._of_project(project, now))

    async def report_section(self, project: str) -> dict[str, list[BudgetLine]]:
        """The limits of a project, and those limits of its live tasks that have reached at least the warning.

        For `fleet`, those of all projects, and the limits of the herd.
        """
        now = await self._catch_up()
        names = self._state.project_names() if project == FLEET else [project]
        lines_by_project = {name: _limited_list(self._of_project(name, now)) for name in names}
        for stored in self._state.tasks.values():
            task = stored.value
            if task.marks and task.project in lines_by_project and self._is_live(task):
                lines = _limited_list(self._of_task(task.project, task.task, now))
                lines_by_project[task.project] += [line for line in lines if line.warned_at or line.exceeded_at]
        return lines_by_project | ({FLEET: _limited_list(self._of_herd(now))} if project == FLEET else {})

    def _is_live(self, task: TaskLedger) -> bool:
        return any(use.is_live for use in self._state.uses_of(task.project, task.task))

    async def grant(self, incoming: IncomingRequest[GrantBudget]) -> BudgetList:
        """Raise limits of a task. The grant is in effect when this returns."""
        project, request = _single_project(incoming.project), incoming.request
        if not any(request.more.model_dump().values()):
            raise ContractError(Code.INVALID_FIELD, "nothing is granted", field="more", remedy="name an amount")
        now = await self._catch_up()
        uses = self._state.uses_of(project, request.task)
        if not uses and task_key(project, request.task) not in self._state.tasks:
            text = f"no sandbox of task {request.task} is known in project {project}"
            raise ContractError(Code.NOT_FOUND, text, field="task", remedy="list the tasks")
        for _ in range(_MAX_ATTEMPTS):
            current = self._state.task(project, request.task, now)
            self._check_readable(current.value)
            ledger = with_grant(current.value, request.grant, request.more)
            if ledger is current.value:
                return BudgetList(budgets=self._of_task(project, request.task, now))
            self._check_grant(current.value, ledger, request)
            if await self._write(ledger, current.revision):
                break
            now = await self._catch_up()
        else:
            raise _unavailable("the ledger could not be stored")
        latest = max(uses, key=lambda use: use.started_at, default=None)
        await self._messages.publish_granted(project, latest.sandbox if latest else FLEET, request, now)
        await self._catch_up()
        return BudgetList(budgets=self._of_task(project, request.task, now))

    def _check_grant(self, before: TaskLedger, after: TaskLedger, request: GrantBudget) -> None:
        """Raise `ContractError` for a grant above the maximum number, or of a kind for which the task has no limit."""
        unlimited = [limit.kind for limit in self._state.limits_of_task(before) if limit.limit is None]
        kinds = [kind for kind in unlimited if request.more.of(kind)]
        if kinds:
            text = f"task {request.task} has no limit of {', '.join(kinds)}: a grant would change nothing"
            raise ContractError(Code.CONFLICT, text, field="more", remedy="grant more of a kind that it has a limit of")
        if len(after.grants) > MAX_GRANTS:
            raise _too_many_grants(request.task)

    async def set(self, incoming: IncomingRequest[SetBudget]) -> BudgetList:
        """Set the limits of a project, or of the herd."""
        project, request = incoming.project, incoming.request
        await self._catch_up()
        for _ in range(_MAX_ATTEMPTS):
            current = self._state.project(project)
            self._check_readable(current.value)
            update = {"limits": request.limits, "updated_by": request.updated_by}
            if await self._write(current.value.model_copy(update=update), current.revision):
                break
            await self._catch_up()
        else:
            raise _unavailable("the ledger could not be stored")
        now = await self._catch_up()
        return BudgetList(budgets=self._of_herd(now) if project == FLEET else self._of_project(project, now))

    def _of_task(self, project: str, task: str, now: datetime) -> list[BudgetLine]:
        ledger = self._state.task(project, task, now).value
        return [line_of(limit, ledger.marks) for limit in self._state.limits_of_task(ledger)]

    def _of_project(self, project: str, now: datetime) -> list[BudgetLine]:
        ledger = self._state.project(project).value
        return [line_of(limit, ledger.marks) for limit in self._state.limits_of_project(ledger, now)]

    def _of_herd(self, now: datetime) -> list[BudgetLine]:
        marks = self._state.project(FLEET).value.marks
        return [line_of(limit, marks) for limit in self._state.limits_of_herd(now)]

    def _check_readable(self, ledger: ProjectLedger | TaskLedger) -> None:
        """Raise `ContractError` if the stored ledger can't be read: it must not be replaced."""
        if not self._state.is_readable(ledger):
            text = f"the budget's record {ledger.key} can't be read; a newer version may have written it"
            raise ContractError(Code.UNAVAILABLE, text, remedy="run the version of the monitor that wrote it")

    async def _catch_up(self) -> datetime:
        """Wait until everything that is stored now was read. Returns the broker's time of the request."""
        try:
            return max([await watch.catch_up() for watch in self._watches])
        except (BusError, *READ_ERRORS) as error:
            raise _unavailable(f"budgets can't be read now: {error!r}") from error

    async def _write(self, ledger: ProjectLedger | TaskLedger, revision: int) -> bool:
        """Store a ledger. Returns False if another write came before, or the broker does not respond."""
        headers = revision_headers(revision)
        document = ledger.model_dump_json(exclude_defaults=True).encode()
        try:
            written = await self._bus.publish(
                f"$KV.budgets.{ledger.key}", document, msg_id=str(new_uuid()), headers=headers
            )
        except BusError:
            return False
        if isinstance(ledger, TaskLedger):
            self._state.tasks[ledger.key] = StoredLedger(ledger, written.seq)
        else:
            self._state.projects[ledger.project] = StoredLedger(ledger, written.seq)
        return True


def _limited_list(lines: Iterable[BudgetLine]) -> list[BudgetLine]:
    return [line for line in lines if line.limit is not None]


def _single_project(project: str) -> str:
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD, f"{FLEET!r} means all projects", field="project", remedy="name one project"
        )
    return project


def _too_many_grants(task: str) -> ContractError:
    text = f"task {task} has {MAX_GRANTS} grants, which is the maximum"
    return ContractError(Code.REFUSED, text, field="task", remedy="submit another task with a larger budget")


def _unavailable(text: str) -> ContractError:
    return ContractError(Code.UNAVAILABLE, text, remedy="repeat the request")
