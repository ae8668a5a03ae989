"""Routes about the history: state and rates, statistics, transcripts, comparisons, search, versions of files."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from gateway.request_models import part_of
from gateway.routes.route_replies import Name
from gateway.sessions import ReadSession, Session
from sandherd.client.errors import HerdError, validated
from sandherd.client.file_history import FileContent
from sandherd.client.history import HISTORY_TIMEOUT_SECONDS
from sandherd.contracts.errors import Code
from sandherd.contracts.model import Number
from sandherd.contracts.requests import (
    Comparison,
    FileVersions,
    GetComparison,
    GetOverview,
    GetStatistics,
    GetTranscript,
    ListFileVersions,
    ProjectOverview,
    Request,
    SearchEvents,
    SearchResult,
    StatisticsList,
    Transcript,
)

router: Final = APIRouter(tags=["history"])
_NO_FIELDS: Final[frozenset[str]] = frozenset()
_TIMEOUT_SECONDS: Final = HISTORY_TIMEOUT_SECONDS / 2
"""Seconds that a response may take, which is less than the deadline of an exchange."""
OverviewQuery: Any = part_of(GetOverview, "OverviewQuery", without=_NO_FIELDS)
StatisticsQuery: Any = part_of(GetStatistics, "StatisticsQuery", without=_NO_FIELDS)
ComparisonQuery: Any = part_of(GetComparison, "ComparisonQuery", without=_NO_FIELDS)
SearchQuery: Any = part_of(SearchEvents, "SearchQuery", without=_NO_FIELDS)
FileVersionsQuery: Any = part_of(ListFileVersions, "FileVersionsQuery", without=frozenset({"sandbox"}))
TranscriptQuery: Any = part_of(GetTranscript, "TranscriptQuery", without=frozenset({"sandbox"}))


async def _request_history(session: Session, request: type[Request[Any]], query: Any, **other_fields: Any) -> Any:
    return await session.herd.connection.request(
        validated(request, **query.model_dump(exclude_unset=True), **other_fields), timeout=_TIMEOUT_SECONDS
    )


@router.get("/overview")
async def overview(session: ReadSession, query: Annotated[OverviewQuery, Query()]) -> ProjectOverview:
    """Tasks and sandboxes by state, events and cost over time, and what needs a user."""
    reply: ProjectOverview = await _request_history(session, GetOverview, query)
    return reply


@router.get("/statistics")
async def statistics(session: ReadSession, query: Annotated[StatisticsQuery, Query()]) -> StatisticsList:
    """Cost, tokens, turns, tool calls and errors, by task, project, harness, model or day."""
    reply: StatisticsList = await _request_history(session, GetStatistics, query)
    return reply


@router.get("/sandboxes/{sandbox}/transcript")
async def transcript(session: ReadSession, sandbox: Name, query: Annotated[TranscriptQuery, Query()]) -> Transcript:
    """What the agent and its users wrote, the agent's calls, and their results. Show the texts as plain text."""
    reply: Transcript = await _request_history(session, GetTranscript, query, sandbox=sandbox)
    return reply


@router.get("/comparison")
async def comparison(session: ReadSession, query: Annotated[ComparisonQuery, Query()]) -> Comparison:
    """Two sandboxes side by side: types of events, turns, tools, files, cost and time."""
    reply: Comparison = await _request_history(session, GetComparison, query)
    return reply


@router.get("/search")
async def search(session: ReadSession, query: Annotated[SearchQuery, Query()]) -> SearchResult:
    """Events with all words of `text`, newest first. `or` separates alternatives, `-` excludes a word.

    Show the snippets as plain text.
    """
    reply: SearchResult = await _request_history(session, SearchEvents, query)
    return reply


@router.get("/sandboxes/{sandbox}/file-versions")
async def file_versions(
    session: ReadSession, sandbox: Name, query: Annotated[FileVersionsQuery, Query()]
) -> FileVersions:
    """The versions of the files that the agent has changed, in the order of the changes."""
    reply: FileVersions = await _request_history(session, ListFileVersions, query, sandbox=sandbox)
    return reply


@router.get("/sandboxes/{sandbox}/file-version")
async def file_version(
    session: ReadSession, sandbox: Name, file_path: Annotated[str, Query(max_length=4096)], number: Number | None = None
) -> FileContent:
    """A version of a file, by default the last: its diff, and its content if the file was created in the sandbox."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await session.herd.file_version(sandbox, file_path, number)
    except TimeoutError:
        text = f"the content of {file_path[:200]} was not reconstructed in time"
        raise HerdError.of(Code.UNAVAILABLE, text, remedy="request its diffs") from None
