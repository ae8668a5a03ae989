"""Requests for the history: statistics, the state of a project, transcripts, comparisons, search, retention."""

from collections.abc import AsyncIterator, Sequence
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from sandherd.client import queries
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, checked_name, validated
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.contracts.requests.search import MAX_HITS

if TYPE_CHECKING:
    from sandherd.contracts.requests.search import TextKind
    from sandherd.contracts.requests.statistics import StatisticGroup

HISTORY_TIMEOUT_SECONDS: Final = 30.0
"""The timeout, in seconds, of requests that may read all events of a project."""
_PAGE_SIZE: Final = 200


class HistoryOperations:
    """The methods of `Herd` about the history. Every method raises `HerdError`."""

    connection: Connection

    async def project_overview(
        self, *, seconds: int = 3600, bucket_seconds: int = 60, needs: int = 50
    ) -> "requests.ProjectOverview":
        """Tasks and sandboxes by state, events and cost of the last `seconds`, and at most `needs` items for a user.

        Findings of the monitor are in `monitor_report`.
        """
        request = validated(requests.GetOverview, seconds=seconds, bucket_seconds=bucket_seconds, needs=needs)
        return await self.connection.request(request)

    async def history_status(self) -> "requests.HistoryStatus":
        """The days of the history of all projects: their sizes, when each is dropped, and the holds.

        Needs an operator's credential.
        """
        return await self.connection.request(requests.GetHistoryStatus(), timeout=HISTORY_TIMEOUT_SECONDS)

    async def hold_history(
        self, reason: str, *, task: str | None = None, by: str | None = None
    ) -> "requests.HistoryHold":
        """Prevent that events of the connection's project, or of one of its tasks, are dropped.

        Raises `HerdError` (`not_found`) for a task that is unknown and has no events. Needs an operator's credential.
        """
        if task is not None:
            await self._check_task(checked_name(task, "task"))
        return await self.connection.request(validated(requests.HoldHistory, task=task, reason=reason, held_by=by))

    async def _check_task(self, task: str) -> None:
        """Raise `HerdError` (`not_found`) if the task is unknown and has no stored events.

        If the task can't be requested, for example because the services are unavailable, it counts as known.
        """
        try:
            await queries.task(self.connection.request, task)
        except HerdError as error:
            if error.problem.code is not Code.NOT_FOUND:
                return
            if not (await self.connection.request(requests.ListEvents(entity=task, limit=1))).events:
                raise

    async def release_history(self, task: str | None = None) -> bool:
        """Remove the hold of the connection's project, or of one of its tasks; returns whether there was one.

        Needs an operator's credential.
        """
        return (await self.connection.request(validated(requests.ReleaseHistory, task=task))).released

    async def history_archives(self) -> "AsyncIterator[requests.ArchivedEvents]":
        """The days in the archive of the history, with one item for each project, the newest first.

        Needs an operator's credential.
        """
        request = requests.ListHistoryArchives()
        while True:
            page = await self.connection.request(request, timeout=HISTORY_TIMEOUT_SECONDS)
            for archived in page.archives:
                yield archived
            if page.next_before is None:
                return
            request = requests.ListHistoryArchives(before=page.next_before)

    async def restore_history(self, day: date, *, days: int = 7, by: str | None = None) -> "requests.HistoryRestore":
        """Load a day of the connection's project, or of all projects, from the archive, for at least `days` days.

        Returns at once: `history_status` shows when it is complete. Needs an operator's credential.
        """
        request = validated(requests.RestoreHistory, day=day, days=days, restored_by=by)
        return await self.connection.request(request, timeout=HISTORY_TIMEOUT_SECONDS)

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
        request = validated(requests.GetStatistics, by=by, tasks=list(tasks), since=since, until=until, limit=limit)
        return await self.connection.request(request, timeout=HISTORY_TIMEOUT_SECONDS)

    async def transcript(
        self, sandbox: str, *, thoughts: bool = True, results: bool = True, newest_first: bool = False
    ) -> "AsyncIterator[requests.TranscriptEntry]":
        """The transcript of a sandbox, over all pages: texts of the agent and of users, calls and their results."""
        request = validated(
            requests.GetTranscript,
            sandbox=checked_name(sandbox, "sandbox"),
            thoughts=thoughts,
            results=results,
            newest_first=newest_first,
            limit=_PAGE_SIZE,
        )
        async for page in queries.pages(self.connection.request, request):
            for entry in page.entries:
                yield entry

    async def compare(self, first: str, second: str) -> "requests.Comparison":
        """Two sandboxes side by side: types of events, turns, tools, files, cost and time."""
        names = checked_name(first, "first"), checked_name(second, "second")
        return await self.connection.request(
            requests.GetComparison(first=names[0], second=names[1]), timeout=HISTORY_TIMEOUT_SECONDS
        )

    async def verify_history(self, sandbox: str | None = None) -> "AsyncIterator[requests.Verification]":
        """The differences between the history's tables and its events, page by page, of a sandbox or of all."""
        name = None if sandbox is None else checked_name(sandbox, "sandbox")
        request = validated(requests.VerifyHistory, sandbox=name)
        async for page in queries.pages(partial(self.connection.request, timeout=HISTORY_TIMEOUT_SECONDS), request):
            yield page

    async def search(
        self,
        text: str,
        *,
        limit: int = 100,
        kinds: Sequence["TextKind"] = (),
        sandbox: str | None = None,
        task: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> "AsyncIterator[requests.SearchHit]":
        """At most `limit` events whose texts contain all words of `text`, newest first.

        `"…"` matches words next to each other, `-word` excludes a word, and `or` separates alternatives.
        """
        request = validated(
            requests.SearchEvents,
            text=text,
            kinds=list(kinds),
            sandbox=None if sandbox is None else checked_name(sandbox, "sandbox"),
            task=None if task is None else checked_name(task, "task"),
            since=since,
            until=until,
            limit=min(limit, MAX_HITS),
        )
        remaining = limit
        async for page in queries.pages(partial(self.connection.request, timeout=HISTORY_TIMEOUT_SECONDS), request):
            for hit in page.hits[:remaining]:
                yield hit
            remaining -= len(page.hits)
            if remaining <= 0:
                return
