"""Routes for operators of a project: health, audit, dead letters, and the checks of the doctor."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Self

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse

from gateway.request_models import part_of
from gateway.routes.route_replies import PREFIX
from gateway.sessions import OperateSession, ReadSession
from sandherd.client import queries
from sandherd.client.doctor.check import Check, CheckState
from sandherd.client.doctor.herd import check_broker, check_herd
from sandherd.client.doctor.services import EXAMINATIONS, ServiceReport, request_reports
from sandherd.client.errors import HerdError, validated
from sandherd.contracts.model import Model, Number
from sandherd.contracts.requests import Audit, DeadLetter, DeadLetters, GetAudit, ListDeadLetters, RequeueResult
from sandherd.contracts.requests.diagnostics import Examination, Examine
from sandherd.contracts.subjects import Principal

router: Final = APIRouter(tags=["operation"])
_EXAMINATIONS: Final = tuple(request for request in EXAMINATIONS if request.answered_by != Principal.GATEWAY)
_REQUEUE_SECONDS: Final = 10.0
"""How long the service of a dead letter may take, in seconds: less than the deadline of an exchange."""
AuditQuery: Any = part_of(GetAudit, "AuditQuery", without=frozenset())
DeadQuery: Any = part_of(ListDeadLetters, "DeadQuery", without=frozenset({"number"}))


class HerdHealth(Model):
    """The health of each service; None for a service that does not respond."""

    services: dict[str, Examination | None]
    healthy: bool
    """Whether all services respond, and nothing hinders them."""


class RequeuedLetter(RequeueResult):
    """A dead letter that its service has handled again: `done`, or why it is still a dead letter."""

    requeued_by: str
    """Who requested it."""


class DoctorCheck(Model):
    """A check of the herd: its result, what was found, and what to do about it."""

    check: str
    state: CheckState
    found: str
    remedy: str | None = None

    @classmethod
    def of(cls, check: Check) -> Self:
        """The JSON document of a check."""
        return cls(check=check.name, state=check.state, found=check.found, remedy=check.remedy)


class DoctorReport(Model):
    """Every check that the gateway can run. `sandherd doctor` also checks the machine."""

    checks: list[DoctorCheck]
    healthy: bool
    """Whether no check has the state `wrong`."""
    checked_at: datetime


@router.get("/audit")
async def audit(session: OperateSession, query: Annotated[AuditQuery, Query()]) -> Audit:
    """Whether every event of the project, or of one sandbox or task, is stored."""
    return await session.herd.connection.request(validated(GetAudit, **query.model_dump(exclude_unset=True)))


@router.get("/dead-letters")
async def dead_letters(session: OperateSession, query: Annotated[DeadQuery, Query()]) -> DeadLetters:
    """Messages that could not be handled, newest first."""
    return await session.herd.connection.request(validated(ListDeadLetters, **query.model_dump(exclude_unset=True)))


@router.get("/dead-letters/{number}")
async def dead_letter(session: OperateSession, number: Annotated[Number, Path()]) -> DeadLetter:
    """One dead letter, with its payload."""
    return await session.herd.dead_letter(number)


@router.post("/dead-letters/{number}/requeue", status_code=202, response_model=RequeuedLetter)
async def requeue(session: OperateSession, number: Annotated[Number, Path()]) -> JSONResponse:
    """Have a dead letter handled again by its service. It is deleted if the outcome is `done`, and stays otherwise.

    Events report what the message causes. If the request is repeated, the message is not handled twice.
    """
    by, send = session.caller.name, session.herd.connection.request
    result = await queries.requeue(send, number, by=by, timeout=_REQUEUE_SECONDS)
    letter = RequeuedLetter(**result.model_dump(), requeued_by=by)
    return JSONResponse(letter.model_dump(mode="json"), 202, {"Location": f"{PREFIX}/dead-letters/{number}"})


@router.get("/health")
@router.get("/sandboxes/health", operation_id="sandboxes_health")
async def health(session: ReadSession) -> HerdHealth:
    """The health of the services behind the gateway."""
    examinations = await asyncio.gather(*(_request_examination(session, request) for request in _EXAMINATIONS))
    services = {request.answered_by: one for request, one in zip(_EXAMINATIONS, examinations, strict=True)}
    healthy = all(
        examination is not None and all(part.problem is None for part in examination.parts)
        for examination in examinations
    )
    return HerdHealth(services=services, healthy=healthy)


async def _request_examination(session: ReadSession, request: type[Examine]) -> Examination | None:
    try:
        return await session.herd.connection.request(request(), timeout=3.0)
    except HerdError:
        return None


@router.get("/doctor")
async def doctor(session: OperateSession) -> DoctorReport:
    """Check broker, services, streams, consumers, their backlog, runtimes and history, each with a remedy."""
    now = datetime.now(UTC)
    reports, own_examination, broker = await asyncio.gather(
        request_reports(session.herd.connection, _EXAMINATIONS), session.backend.examine(), check_broker(session.herd)
    )
    all_reports = {**reports, Principal.GATEWAY.value: ServiceReport(own_examination, timedelta())}
    checks = [broker, *await check_herd(session.herd, all_reports, now)]
    return DoctorReport(
        checks=[DoctorCheck.of(check) for check in checks],
        healthy=all(check.state is not CheckState.WRONG for check in checks),
        checked_at=now,
    )
