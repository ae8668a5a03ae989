"""Questions about the history: statistics, the state of a project, transcripts."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sandherd.client import queries
from sandherd.client.connection import Connection
from sandherd.client.errors import checked_name, made
from sandherd.contracts import requests

if TYPE_CHECKING:
    from sandherd.contracts.requests.statistics import StatisticGroup

SECONDS: Final = 30.0
"""How long to wait for what may read all of a project, in seconds."""
_PAGE: Final = 200


class HistoryOperations:
    """The methods of `Herd` about the history. Every method raises `HerdError`."""

    connection: Connection

    async def project_overview(
        self, *, seconds: int = 3600, bucket_seconds: int = 60, needs: int = 50
    ) -> "requests.ProjectOverview":
        """Tasks and sandboxes by state, events and cost over the last `seconds`, and what needs a user.

        What the monitor has found is in `monitor_report`.
        """
        question = made(requests.AskOverview, seconds=seconds, bucket_seconds=bucket_seconds, needs=needs)
        return await self.connection.request(question)

    async def statistics(
        self,
        *,
        by: "StatisticGroup" = "task",
        tasks: Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> "requests.StatisticsList":
        """Cost, tokens, turns, tool calls and errors, in groups, the most expensive first."""
        question = made(requests.AskStatistics, by=by, tasks=list(tasks), since=since, until=until, limit=limit)
        return await self.connection.request(question, timeout=SECONDS)

    async def transcript(
        self, sandbox: str, *, thoughts: bool = True, results: bool = True, newest_first: bool = False
    ) -> "AsyncIterator[requests.TranscriptEntry]":
        """What the agent in a sandbox and its users wrote, what it called, and what came back, over all pages."""
        question = made(
            requests.AskTranscript,
            sandbox=checked_name(sandbox, "sandbox"),
            thoughts=thoughts,
            results=results,
            newest_first=newest_first,
            limit=_PAGE,
        )
        async for page in queries.pages(self.connection.request, question):
            for entry in page.entries:
                yield entry
