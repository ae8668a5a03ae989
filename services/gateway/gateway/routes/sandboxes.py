"""Routes about sandboxes: list, show, terminate; events, output and messages, under the paths of earlier systems."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from gateway.problems import problem_of, problem_response
from gateway.request_models import body_of, part_of
from gateway.routes.route_replies import (
    STREAM_RESPONSE,
    Accepted,
    AfterHeader,
    MatchHeader,
    Name,
    accepted_response,
    check_match,
    response_with_tag,
)
from gateway.sessions import ReadSession, Session, WorkSession
from sandherd.client.errors import HerdError, validated
from sandherd.client.monitor import check_rule
from sandherd.contracts.commands import MuteRule, RuleName, SendMessage, TerminateSandbox, UnmuteRule
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import (
    EventList,
    GetOutput,
    GetTrajectory,
    ListEvents,
    MonitorView,
    Output,
    SandboxList,
    SandboxView,
    Trajectory,
)
from sandherd.contracts.requests.live_state import SandboxFilter
from sandherd.contracts.states import SANDBOX_ENDED

router: Final = APIRouter(tags=["sandboxes"])
_FIELDS_OF_PATH: Final = frozenset({"sandbox"})
SandboxQuery: Any = part_of(SandboxFilter, "SandboxQuery", without=frozenset({"sandbox", "labels"}), past=(bool, False))
SandboxEventQuery: Any = part_of(ListEvents, "SandboxEventQuery", without=frozenset({"sandbox", "task", "entity"}))
TrajectoryQuery: Any = part_of(GetTrajectory, "TrajectoryQuery", without=_FIELDS_OF_PATH)
OutputQuery: Any = part_of(GetOutput, "OutputQuery", without=_FIELDS_OF_PATH)
TerminateBody: Any = body_of(TerminateSandbox, "TerminateBody", without=_FIELDS_OF_PATH)
MessageBody: Any = body_of(SendMessage, "MessageBody", without=frozenset({"sandbox", "message", "sender_id"}))
MuteBody: Any = body_of(MuteRule, "MuteBody", without=frozenset({"sandbox", "rule", "muted_by"}))
Rule = Annotated[RuleName, Path()]
_ABSENT_RESPONSE: Final[dict[int | str, dict[str, Any]]] = {
    410: {"description": "Deliberately absent, for the reason in the response."}
}


@router.get("/sandboxes")
async def list_sandboxes(session: ReadSession, query: Annotated[SandboxQuery, Query()]) -> SandboxList:
    """Sandboxes, newest first: current ones, or those of the history with `past`."""
    page = await session.herd.sandboxes(**query.model_dump(exclude_unset=True))
    return SandboxList(sandboxes=page.items, next_cursor=page.next_cursor)


@router.get("/sandboxes/{sandbox}", response_model=SandboxView)
async def get_sandbox(request: Request, session: ReadSession, sandbox: Name) -> Response:
    """A sandbox in its current or final state, with an `ETag` for `If-None-Match`, and for `If-Match` of commands."""
    return response_with_tag(request, await session.herd.sandbox(sandbox))


@router.post("/sandboxes/{sandbox}/terminate", status_code=202, response_model=Accepted)
async def terminate_sandbox(
    session: WorkSession, sandbox: Name, body: TerminateBody, if_match: MatchHeader = None
) -> JSONResponse:
    """End a sandbox and every process in it."""
    check_match(if_match, await session.herd.sandbox(sandbox))
    await session.herd.terminate(sandbox, reason=f"{session.caller.name}: {body.reason}")
    return accepted_response(sandbox, f"/sandboxes/{sandbox}")


@router.get("/sandboxes/{sandbox}/events")
async def sandbox_events(
    session: ReadSession, sandbox: Name, query: Annotated[SandboxEventQuery, Query()]
) -> EventList:
    """Stored events of a sandbox, oldest first."""
    request = validated(ListEvents, sandbox=sandbox, **query.model_dump(exclude_unset=True))
    reply = await session.herd.connection.request(request)
    if not reply.events:
        await session.herd.sandbox(sandbox)
    return reply


@router.get("/sandboxes/{sandbox}/events/stream", response_class=Response, responses=STREAM_RESPONSE)
async def stream_sandbox(
    session: ReadSession, sandbox: Name, after: str | None = None, last_event_id: AfterHeader = None
) -> Response:
    """Stream events of a sandbox after the position in `Last-Event-ID` or `after`; without a position, new events."""
    await session.herd.sandbox(sandbox)
    return session.backend.streams.open(session.caller, sandbox, last_event_id or after)


@router.get("/sandboxes/{sandbox}/trajectory")
async def trajectory(session: ReadSession, sandbox: Name, query: Annotated[TrajectoryQuery, Query()]) -> Trajectory:
    """What the agent in a sandbox did; heartbeats are summarised."""
    request = validated(GetTrajectory, sandbox=sandbox, **query.model_dump(exclude_unset=True))
    reply = await session.herd.connection.request(request)
    if not reply.events:
        await session.herd.sandbox(sandbox)
    return reply


@router.get("/sandboxes/{sandbox}/output")
async def output(session: ReadSession, sandbox: Name, query: Annotated[OutputQuery, Query()]) -> Output:
    """The output of a sandbox's terminal, as far as it is still stored."""
    request = validated(GetOutput, sandbox=sandbox, **query.model_dump(exclude_unset=True))
    reply = await session.herd.connection.request(request)
    if not reply.chunks:
        await session.herd.sandbox(sandbox)
    return reply


@router.get("/sandboxes/{sandbox}/monitor")
async def monitored(session: ReadSession, sandbox: Name) -> MonitorView:
    """What the monitor knows of a sandbox."""
    return await session.herd.monitored(sandbox)


@router.post("/sandboxes/{sandbox}/rules/{rule}/mute", status_code=202, response_model=Accepted)
async def mute_rule(session: WorkSession, sandbox: Name, rule: Rule, body: MuteBody | None = None) -> JSONResponse:
    """Mute a guardian rule of the monitor for a sandbox, for some seconds or until it is unmuted."""
    fields = {} if body is None else body.model_dump(exclude_unset=True)
    command = validated(MuteRule, sandbox=sandbox, rule=rule, muted_by=session.caller.name, **fields)
    return await _change_rule(session, command)


@router.post("/sandboxes/{sandbox}/rules/{rule}/unmute", status_code=202, response_model=Accepted)
async def unmute_rule(session: WorkSession, sandbox: Name, rule: Rule) -> JSONResponse:
    """Evaluate a muted rule again."""
    return await _change_rule(
        session, validated(UnmuteRule, sandbox=sandbox, rule=rule, unmuted_by=session.caller.name)
    )


async def _change_rule(session: Session, command: MuteRule | UnmuteRule) -> JSONResponse:
    check_rule(await session.herd.monitored(command.sandbox), command.rule)
    await session.herd.connection.command(command, command.sandbox)
    return accepted_response(command.sandbox, f"/sandboxes/{command.sandbox}/monitor")


@router.post("/sandboxes/{sandbox}/messages", status_code=202, response_model=Accepted)
async def send_message(session: WorkSession, sandbox: Name, body: MessageBody) -> JSONResponse:
    """Send a message to the agent in a sandbox. `Location` has the events about its delivery."""
    view = await session.herd.sandbox(sandbox)
    if view.state in SANDBOX_ENDED:
        text = f"{sandbox} is {view.state}: it receives no messages"
        raise HerdError.of(Code.CONFLICT, text, field="sandbox", remedy="name one that runs")
    message = session.name("msg")
    fields = body.model_dump(exclude_unset=True)
    command = validated(SendMessage, message=message, sandbox=sandbox, sender_id=session.caller.name, **fields)
    await session.herd.connection.command(command, sandbox)
    return accepted_response(message, f"/events?source=/sandherd/message-relay/{message}")


@router.get("/sandboxes/{sandbox}/messages", response_class=Response, responses=_ABSENT_RESPONSE)
async def poll_messages(_session: ReadSession, sandbox: Name) -> Response:
    """Absent: workers receive messages from the broker, each once, and acknowledge them."""
    text = "messages are delivered by the broker: polling would take them from the worker"
    remedy = f"see the events message.* at /api/v1/sandboxes/{sandbox}/events"
    return problem_response(problem_of(Code.REFUSED, text, remedy=remedy), 410)


@router.post("/sandboxes/{sandbox}/events", response_class=Response, responses=_ABSENT_RESPONSE)
async def post_event(_session: ReadSession, sandbox: Name) -> Response:
    """Absent: workers publish events to the broker, with a credential of their own sandbox."""
    text = f"events of {sandbox} are published to the broker by its worker alone"
    return problem_response(problem_of(Code.REFUSED, text, remedy="see docs/workers.md"), 410)
