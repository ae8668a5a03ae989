"""What happened in the project: its state and rates, statistics, transcripts."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from gateway.bodies import part_of
from gateway.routes.replies import Name
from gateway.sessions import Reader, Session
from sandherd.client.errors import made
from sandherd.client.history import SECONDS
from sandherd.contracts.requests import (
    AskOverview,
    AskStatistics,
    AskTranscript,
    ProjectOverview,
    Request,
    StatisticsList,
    Transcript,
)

router: Final = APIRouter(tags=["history"])
_NONE: Final[frozenset[str]] = frozenset()
_WAIT: Final = SECONDS / 2
"""Seconds that a response may take, which is less than the deadline of an exchange."""
OverviewQuery: Any = part_of(AskOverview, "OverviewQuery", without=_NONE)
StatisticsQuery: Any = part_of(AskStatistics, "StatisticsQuery", without=_NONE)
TranscriptQuery: Any = part_of(AskTranscript, "TranscriptQuery", without=frozenset({"sandbox"}))


async def _reply(session: Session, request: type[Request[Any]], which: Any, **more: Any) -> Any:
    return await session.herd.connection.request(
        made(request, **which.model_dump(exclude_unset=True), **more), timeout=_WAIT
    )


@router.get("/overview")
async def overview(session: Reader, which: Annotated[OverviewQuery, Query()]) -> ProjectOverview:
    """Tasks and sandboxes by state, events and cost over time, and what needs a user."""
    found: ProjectOverview = await _reply(session, AskOverview, which)
    return found


@router.get("/statistics")
async def statistics(session: Reader, which: Annotated[StatisticsQuery, Query()]) -> StatisticsList:
    """Cost, tokens, turns, tool calls and errors, by task, project, harness, model or day."""
    found: StatisticsList = await _reply(session, AskStatistics, which)
    return found


@router.get("/sandboxes/{sandbox}/transcript")
async def transcript(session: Reader, sandbox: Name, which: Annotated[TranscriptQuery, Query()]) -> Transcript:
    """What the agent and its users wrote, what it called, and what came back. Texts are to be shown as plain text."""
    found: Transcript = await _reply(session, AskTranscript, which, sandbox=sandbox)
    return found
