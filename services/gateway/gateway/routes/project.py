"""Routes about a project: schedules, secrets, subscriptions, grants, usage, artifacts."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field, StringConstraints

from gateway.request_models import body_of, part_of
from gateway.routes.route_replies import Name
from gateway.sessions import ApproveSession, ReadSession, WorkSession
from sandherd.client.artifacts import EventArtifact
from sandherd.client.errors import HerdError, validated
from sandherd.contracts.errors import Code
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests import (
    BudgetList,
    DeleteSchedule,
    DeleteSecret,
    GetUsage,
    GrantBudget,
    ListProjects,
    ListSchedules,
    PauseSchedule,
    ProjectList,
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
ScheduleBody: Any = body_of(SetSchedule, "ScheduleBody", without=frozenset({"name", "updated_by"}))
SubscriptionBody: Any = body_of(Subscribe, "SubscriptionBody", without=frozenset({"name"}))
GrantBody: Any = body_of(GrantBudget, "GrantBody", without=frozenset({"task", "grant", "granted_by"}))
UsageQuery: Any = part_of(GetUsage, "UsageQuery", without=frozenset({"labels"}))
ScheduleNamed = Annotated[ScheduleName, Path()]
SecretNamed = Annotated[SecretName, Path()]
_MAX_LISTED_ARTIFACTS: Final = 1000


class SecretBody(Model):
    """The value of a secret. It is encrypted for the spawner immediately, and never returned."""

    model_config = ConfigDict(defer_build=False)  # as for `TaskBody`
    value: Annotated[str, StringConstraints(min_length=1, max_length=65_536)] = Field(repr=False)


class ArtifactList(Model):
    """Artifacts that events refer to, oldest first."""

    artifacts: list[EventArtifact]
    truncated: bool
    """Whether there are more."""


# --- schedules -----------------------------------------------------------------------------------------------------


@router.get("/schedules", tags=["schedules"])
async def schedules(session: ReadSession) -> ScheduleList:
    """The project's schedules, each with its next time and last runs, without its task."""
    return await session.herd.schedules()


@router.get("/schedules/{schedule}", tags=["schedules"])
async def get_schedule(session: ReadSession, schedule: ScheduleNamed) -> ScheduleView:
    """A schedule with its task, its next times and last runs."""
    schedule_list = await session.herd.connection.request(validated(ListSchedules, name=schedule))
    return schedule_list.schedules[0]


@router.put("/schedules/{schedule}", tags=["schedules"])
async def set_schedule(session: WorkSession, schedule: ScheduleNamed, body: ScheduleBody) -> ScheduleView:
    """Create a schedule; with `replace`, replace one of this name. Its task may not have values of secrets."""
    if body.schedule.task.secret_env:
        text = "values of secrets would be stored with the schedule"
        remedy = "store them at /api/v1/secrets, and name them in `secrets`"
        raise HerdError.of(Code.INVALID_FIELD, text, field="schedule.task.secret_env", remedy=remedy)
    request = SetSchedule(name=schedule, schedule=body.schedule, replace=body.replace, updated_by=session.caller.name)
    return await session.herd.connection.request(request)


@router.post("/schedules/{schedule}/pause", tags=["schedules"])
async def pause_schedule(session: WorkSession, schedule: ScheduleNamed) -> ScheduleView:
    """Pause a schedule: no task is started until it is resumed."""
    return await session.herd.connection.request(validated(PauseSchedule, name=schedule, paused=True))


@router.post("/schedules/{schedule}/resume", tags=["schedules"])
async def resume_schedule(session: WorkSession, schedule: ScheduleNamed) -> ScheduleView:
    """Resume a schedule. Due times while it was paused are not caught up."""
    return await session.herd.connection.request(validated(PauseSchedule, name=schedule, paused=False))


@router.post("/schedules/{schedule}/trigger", tags=["schedules"])
async def trigger_schedule(session: WorkSession, schedule: ScheduleNamed) -> ScheduleTriggered:
    """Start a task of a schedule now."""
    return await session.herd.connection.request(validated(TriggerSchedule, name=schedule))


@router.delete("/schedules/{schedule}", tags=["schedules"])
async def delete_schedule(session: WorkSession, schedule: ScheduleNamed) -> ScheduleDeleted:
    """Delete a schedule. Its tasks are not affected."""
    return await session.herd.connection.request(validated(DeleteSchedule, name=schedule))


# --- secrets and subscriptions -------------------------------------------------------------------------------------


@router.get("/secrets", tags=["secrets"])
async def secrets(session: ReadSession) -> SecretList:
    """The project's named secrets, without values: no operation returns a value."""
    return await session.herd.secrets()


@router.put("/secrets/{secret}", tags=["secrets"])
async def set_secret(session: WorkSession, secret: SecretNamed, body: SecretBody) -> SecretView:
    """Store a value under a name; it replaces the previous one."""
    return await session.herd.set_secret(secret, body.value, by=session.caller.name)


@router.delete("/secrets/{secret}", tags=["secrets"])
async def delete_secret(session: WorkSession, secret: SecretNamed, *, force: bool = False) -> SecretDeleted:
    """Delete a secret and erase its value; with `force` even if tasks that have not ended use it."""
    return await session.herd.connection.request(validated(DeleteSecret, name=secret, force=force))


@router.get("/subscriptions", tags=["subscriptions"])
async def subscriptions(session: ReadSession) -> SubscriptionList:
    """The project's durable subscriptions."""
    return await session.herd.subscriptions()


@router.put("/subscriptions/{subscription}", tags=["subscriptions"])
async def set_subscription(session: WorkSession, subscription: Name, body: SubscriptionBody) -> Subscription:
    """Create a durable subscription, whose events a program receives from the broker."""
    fields = body.model_dump(exclude_unset=True)
    return await session.herd.connection.request(validated(Subscribe, name=subscription, **fields))


@router.delete("/subscriptions/{subscription}", tags=["subscriptions"])
async def delete_subscription(session: WorkSession, subscription: Name) -> UnsubscribeResult:
    """Delete a subscription and its position."""
    return await session.herd.unsubscribe(subscription)


# --- budgets, usage, projects, artifacts ---------------------------------------------------------------------------


@router.post("/tasks/{task}/budget", tags=["budgets"])
async def grant_budget(session: ApproveSession, task: Name, body: GrantBody) -> BudgetList:
    """Grant a task more than its budget. Requests with the same `Idempotency-Key` grant once."""
    fields = body.model_dump(exclude_unset=True)
    name = session.name("grant")
    request = validated(GrantBudget, task=task, grant=name, granted_by=session.caller.name, **fields)
    return await session.herd.connection.request(request)


@router.get("/usage", tags=["budgets"])
async def usage(session: ReadSession, query: Annotated[UsageQuery, Query()]) -> UsageList:
    """Tokens and cost by task, label, day or model."""
    return await session.herd.connection.request(validated(GetUsage, **query.model_dump(exclude_unset=True)))


@router.get("/projects", tags=["operation"])
async def projects(session: ReadSession) -> ProjectList:
    """The project of the token, with its limits and defaults."""
    return await session.herd.connection.request(ListProjects())


@router.get("/artifacts", tags=["artifacts"])
async def artifacts(
    session: ReadSession, task: SafeName | None = None, sandbox: SafeName | None = None
) -> ArtifactList:
    """The artifacts of a task or a sandbox; one of the two has to be named."""
    if (task is None) == (sandbox is None):
        raise HerdError.of(Code.INVALID_FIELD, "name a task or a sandbox", field="task", remedy="name one of the two")
    listed: list[EventArtifact] = []
    async for artifact in session.herd.artifacts(task=task, sandbox=sandbox):
        if len(listed) == _MAX_LISTED_ARTIFACTS:
            return ArtifactList(artifacts=listed, truncated=True)
        listed.append(artifact)
    return ArtifactList(artifacts=listed, truncated=False)
