"""The part of the spawner that works on pull requests. It also reports metrics, including forges' rate limits."""

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any, Final, Self

from sandherd.bus.connection import Bus
from sandherd.bus.lease import Lease
from sandherd.settings import Settings
from spawner.forges.factory import Forges
from spawner.live_state import LiveState
from spawner.pull_requests.gauges import counts_of, requests_remaining
from spawner.pull_requests.pull_request_options import PollIntervals, PullRequestTerms
from spawner.pull_requests.pull_request_workflow import PullRequestWorkflow, Submit
from spawner.repositories.mirrors import Mirrors

_REPORT_SECONDS: Final = 5.0
"""The interval of reporting metrics."""


class PullRequestService:
    """Runs the steps of pull requests and reports their metrics, on the replica that holds the scheduler's lease."""

    def __init__(self, live: LiveState, forges: Forges, workflow: PullRequestWorkflow, pace: PollIntervals) -> None:
        self._live, self._forges, self._workflow, self._pace = live, forges, workflow, pace

    @classmethod
    def of(
        cls, bus: Bus, live: LiveState, lease: Lease, settings: Settings,
        *, forges: Forges, mirrors: Mirrors, submit: Submit,
    ) -> Self:  # fmt: skip
        """The service with these settings."""
        pace = PollIntervals(age=timedelta(days=settings.pull_request_days))
        workflow = PullRequestWorkflow(
            live,
            lease,
            mirrors,
            forges,
            terms=PullRequestTerms.of(settings),
            submit=submit,
            ids=bus.ids,
            pace=pace,
        )
        return cls(live, forges, workflow, pace)

    def work(self) -> Iterable[Coroutine[Any, Any, None]]:
        """The coroutines of the service, to be run concurrently. Each runs until it is cancelled."""
        return self._workflow.run(), self._report()

    async def _report(self) -> None:
        try:
            await self._report_forever()
        finally:  # from now on, the replica that holds the lease reports them
            self._live.meters.replace("sandherd_pull_requests", [])

    async def _report_forever(self) -> None:
        while True:
            now, meters = self._live.now(), self._live.meters
            counts = counts_of(self._live.branch_index.views(), now, self._pace)
            meters.replace("sandherd_pull_requests", [({"state": state}, count) for state, count in counts.items()])
            remaining = requests_remaining(self._forges.rate_limits())
            meters.replace(
                "sandherd_forge_requests_remaining", [({"host": host}, number) for host, number in remaining.items()]
            )
            await asyncio.sleep(_REPORT_SECONDS)
