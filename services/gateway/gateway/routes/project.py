"""What a user sets in a project: schedules, secrets, subscriptions, grants; and actions on branches."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, StringConstraints

from gateway.bodies import part_of
from gateway.routes.replies import Accepted, Name, accepted
from gateway.sessions import Approver, Reader, Session, Worker
from sandherd.client.artifacts import EventArtifact
from sandherd.client.errors import HerdError, made
from sandherd.contracts.errors import Code
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests import (
    AskUsage,
    BranchView,
    BudgetList,
    DeleteBranch,
    DeleteSchedule,
    DeleteSecret,
    GrantBudget,
    ListBranches,
    ListProjects,
    ListSchedules,
    MergeBranch,
    OpenPullRequest,
    PauseSchedule,
    ProjectList,
    PushBranch,
    Request,
    ScheduleDeleted,
    ScheduleList,
    ScheduleTriggered,
    ScheduleView,
    SecretDeleted,
    SecretList,
    SecretView,
    SetSchedule,
    Subscribe,
    Subscription,
    SubscriptionList,
    TriggerSchedule,
    UnsubscribeResult,
    UsageList,
)
from sandherd.contracts.schedules import ScheduleName
from sandherd.contracts.specs import SecretName

router: Final = APIRouter()
_BRANCH: Final = frozenset({"branch", "requested_by"})
ScheduleBody: Any = part_of(SetSchedule, "ScheduleBody", without=frozenset({"name", "updated_by"}))
SubscriptionBody: Any = part_of(Subscribe, "SubscriptionBody", without=frozenset({"name"}))
GrantBody: Any = part_of(GrantBudget, "GrantBody", without=frozenset({"task", "grant", "granted_by"}))
PushBody: Any = part_of(PushBranch, "PushBody", without=_BRANCH)
PullRequestBody: Any = part_of(OpenPullRequest, "PullRequestBody", without=_BRANCH)
MergeBody: Any = part_of(MergeBranch, "MergeBody", without=_BRANCH)
DeleteBranchQuery: Any = part_of(DeleteBranch, "DeleteBranchQuery", without=_BRANCH)
UsageQuery: Any = part_of(AskUsage, "UsageQuery", without=frozenset({"labels"}))
ScheduleNamed = Annotated[ScheduleName, Path()]
SecretNamed = Annotated[SecretName, Path()]
BranchNamed = Annotated[str, Path(pattern="^br-[0-9a-f]{20}$")]
"""The id of a branch: names of branches have slashes."""
_FEW: Final = 1000


class SecretBody(Model):
    """The value of a secret. It is encrypted for the spawner at once, and never returned."""

    model_config = ConfigDict(defer_build=False)  # as for `TaskBody`
    value: Annotated[str, StringConstraints(min_length=1, max_length=65_536)] = Field(repr=False)


class ArtifactList(Model):
    """Artifacts that events refer to, oldest first."""

    artifacts: list[EventArtifact]
    truncated: bool
    """Whether there are more."""


# --- schedules -----------------------------------------------------------------------------------------------------


@router.get("/schedules", tags=["schedules"])
async def schedules(session: Reader) -> ScheduleList:
    """The project's schedules, each with its next time and last runs, without its task."""
    return await session.herd.schedules()


@router.get("/schedules/{schedule}", tags=["schedules"])
async def get_schedule(session: Reader, schedule: ScheduleNamed) -> ScheduleView:
    """A schedule with its task, its next times and last runs."""
    found = await session.herd.connection.request(made(ListSchedules, name=schedule))
    return found.schedules[0]


@router.put("/schedules/{schedule}", tags=["schedules"])
async def set_schedule(session: Worker, schedule: ScheduleNamed, body: ScheduleBody) -> ScheduleView:
    """Create a schedule; with `replace`, in place of one of this name. Values of secrets are not accepted in it."""
    if body.schedule.task.secret_env:
        text = "values of secrets would be stored with the schedule"
        remedy = "store them at /api/v1/secrets, and name them in `secrets`"
        raise HerdError.of(Code.INVALID_FIELD, text, field="schedule.task.secret_env", remedy=remedy)
    request = SetSchedule(name=schedule, schedule=body.schedule, replace=body.replace, updated_by=session.caller.name)
    return await session.herd.connection.request(request)


@router.post("/schedules/{schedule}/pause", tags=["schedules"])
async def pause_schedule(session: Worker, schedule: ScheduleNamed) -> ScheduleView:
    """Start no more tasks of a schedule until it is resumed."""
    return await session.herd.connection.request(made(PauseSchedule, name=schedule, paused=True))


@router.post("/schedules/{schedule}/resume", tags=["schedules"])
async def resume_schedule(session: Worker, schedule: ScheduleNamed) -> ScheduleView:
    """Resume a schedule. Due times while it was paused are not caught up."""
    return await session.herd.connection.request(made(PauseSchedule, name=schedule, paused=False))


@router.post("/schedules/{schedule}/trigger", tags=["schedules"])
async def trigger_schedule(session: Worker, schedule: ScheduleNamed) -> ScheduleTriggered:
    """Start a task of a schedule now."""
    return await session.herd.connection.request(made(TriggerSchedule, name=schedule))


@router.delete("/schedules/{schedule}", tags=["schedules"])
async def delete_schedule(session: Worker, schedule: ScheduleNamed) -> ScheduleDeleted:
    """Delete a schedule. Its tasks are not affected."""
    return await session.herd.connection.request(made(DeleteSchedule, name=schedule))


# --- secrets and subscriptions -------------------------------------------------------------------------------------


@router.get("/secrets", tags=["secrets"])
async def secrets(session: Reader) -> SecretList:
    """The project's named secrets, without values: no operation returns one."""
    return await session.herd.secrets()


@router.put("/secrets/{secret}", tags=["secrets"])
async def set_secret(session: Worker, secret: SecretNamed, body: SecretBody) -> SecretView:
    """Store a value under a name; it replaces the previous one."""
    return await session.herd.set_secret(secret, body.value, by=session.caller.name)


@router.delete("/secrets/{secret}", tags=["secrets"])
async def delete_secret(session: Worker, secret: SecretNamed, *, force: bool = False) -> SecretDeleted:
    """Delete a secret and erase its value; with `force` even if tasks that have not ended use it."""
    return await session.herd.connection.request(made(DeleteSecret, name=secret, force=force))


@router.get("/subscriptions", tags=["subscriptions"])
async def subscriptions(session: Reader) -> SubscriptionList:
    """The project's durable subscriptions."""
    return await session.herd.subscriptions()


@router.put("/subscriptions/{subscription}", tags=["subscriptions"])
async def set_subscription(session: Worker, subscription: Name, body: SubscriptionBody) -> Subscription:
    """Create a durable subscription, whose events a program receives from the broker."""
    fields = body.model_dump(exclude_unset=True)
    return await session.herd.connection.request(made(Subscribe, name=subscription, **fields))


@router.delete("/subscriptions/{subscription}", tags=["subscriptions"])
async def delete_subscription(session: Worker, subscription: Name) -> UnsubscribeResult:
    """Delete a subscription and its position."""
    return await session.herd.unsubscribe(subscription)


# --- budgets, usage, projects, artifacts ---------------------------------------------------------------------------


@router.post("/tasks/{task}/budget", tags=["budgets"])
async def grant_budget(session: Approver, task: Name, body: GrantBody) -> BudgetList:
    """Grant a task more than its budget; with the same `Idempotency-Key` once."""
    fields = body.model_dump(exclude_unset=True)
    name = session.name("grant")
    request = made(GrantBudget, task=task, grant=name, granted_by=session.caller.name, **fields)
    return await session.herd.connection.request(request)


@router.get("/usage", tags=["budgets"])
async def usage(session: Reader, which: Annotated[UsageQuery, Query()]) -> UsageList:
    """Tokens and cost by task, label, day or model."""
    return await session.herd.connection.request(made(AskUsage, **which.model_dump(exclude_unset=True)))


@router.get("/projects", tags=["operation"])
async def projects(session: Reader) -> ProjectList:
    """The project of the token, with its limits and defaults."""
    return await session.herd.connection.request(ListProjects())


@router.get("/artifacts", tags=["artifacts"])
async def artifacts(session: Reader, task: SafeName | None = None, sandbox: SafeName | None = None) -> ArtifactList:
    """The artifacts of a task or a sandbox; one of the two has to be named."""
    if (task is None) == (sandbox is None):
        raise HerdError.of(Code.INVALID_FIELD, "name a task or a sandbox", field="task", remedy="name one of the two")
    found: list[EventArtifact] = []
    async for one in session.herd.artifacts(task=task, sandbox=sandbox):
        if len(found) == _FEW:
            return ArtifactList(artifacts=found, truncated=True)
        found.append(one)
    return ArtifactList(artifacts=found, truncated=False)


# --- branches ------------------------------------------------------------------------------------------------------


@router.get("/branches/{branch}", tags=["branches"])
async def get_branch(session: Reader, branch: BranchNamed) -> BranchView:
    """A branch by its id."""
    found = await session.herd.connection.request(made(ListBranches, branch=branch))
    if not found.branches:
        raise HerdError.of(
            Code.NOT_FOUND, f"there is no branch {branch}", field="branch", remedy="see /api/v1/branches"
        )
    return found.branches[0]


@router.post("/branches/{branch}/push", status_code=202, response_model=Accepted, tags=["branches"])
async def push_branch(session: Worker, branch: BranchNamed, body: PushBody | None = None) -> JSONResponse:
    """Push a branch as soon as possible. `approved_commit` approves paths, which needs the role `approve`."""
    if body is not None and body.approved_commit is not None:
        session.check("approve")
    return await _branch_action(session, PushBranch, branch, body)


@router.post("/branches/{branch}/pull-request", status_code=202, response_model=Accepted, tags=["branches"])
async def open_pull_request(session: Worker, branch: BranchNamed, body: PullRequestBody | None = None) -> JSONResponse:
    """Open the branch's pull request, or update it."""
    return await _branch_action(session, OpenPullRequest, branch, body)


@router.post("/branches/{branch}/merge", status_code=202, response_model=Accepted, tags=["branches"])
async def merge_branch(session: Approver, branch: BranchNamed, body: MergeBody | None = None) -> JSONResponse:
    """Merge the branch's pull request once its forge permits it."""
    return await _branch_action(session, MergeBranch, branch, body)


@router.delete("/branches/{branch}", status_code=202, response_model=Accepted, tags=["branches"])
async def delete_branch(
    session: Worker, branch: BranchNamed, which: Annotated[DeleteBranchQuery, Query()]
) -> JSONResponse:
    """Delete a branch in the herd, and in its repository if it was pushed; with `where=here`, only in the herd."""
    return await _branch_action(session, DeleteBranch, branch, which)


async def _branch_action(session: Session, action: type[Request[Any]], branch: str, body: Any) -> JSONResponse:
    fields = {} if body is None else body.model_dump(exclude_unset=True)
    await session.herd.connection.request(made(action, branch=branch, requested_by=session.caller.name, **fields))
    return accepted(branch, f"/branches/{branch}")
