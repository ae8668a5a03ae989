"""Composes the budget component. Every replica follows the buckets and answers requests; one of them acts."""

import asyncio
from contextlib import suppress
from typing import Any, Final

from monitor.bucket_entries import BucketWatch
from monitor.budgets.budget_messages import BudgetMessages
from monitor.budgets.budget_state import BudgetState
from monitor.budgets.enforcement import BudgetEnforcement
from monitor.budgets.request_handlers import BudgetRequestHandler
from sandherd.bus.lease import Lease
from sandherd.concurrency import run_until_first
from sandherd.contracts.errors import ContractError
from sandherd.contracts.records import BudgetBlocks, SandboxSummary
from sandherd.contracts.requests import (
    BudgetLine,
    GrantBudget,
    ListBudgets,
    MonitorView,
    Request,
    SetBudget,
)
from sandherd.service.encoded_answer import AnyAnswer
from sandherd.service.requests import Answerer, IncomingRequest
from sandherd.service.service import Service

LEASE: Final = "monitor.budgets"
REQUESTS: Final = (ListBudgets, GrantBudget, SetBudget)


class BudgetComponent:
    """Budgets in one replica of the monitor."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._state = BudgetState(service.settings.budgets)
        self._ready = asyncio.Event()
        self._handler: BudgetRequestHandler

    def register(self) -> None:
        """Answer requests, and work in the background."""
        for request in REQUESTS:
            self._service.answer(request, self._answerer(request))
        self._service.background("budgets", self.run)

    async def with_spending(self, view: MonitorView) -> MonitorView:
        """The view of a sandbox with the usage of its task, which is omitted while the ledger can't be read."""
        await self._ready.wait()
        if view.task is not None:
            with suppress(ContractError):
                spending = await self._handler.of_sandbox(view.project, view.task)
                return view.model_copy(update={"spending": spending})
        return view

    async def report_section(self, project: str) -> dict[str, list[BudgetLine]] | None:
        """The budgets section of a report, by project; None if the ledgers can't be read at present."""
        await self._ready.wait()
        with suppress(ContractError):
            return await self._handler.report_section(project)
        return None

    async def run(self) -> None:
        """Run until cancelled."""
        service, bus, state = self._service, self._service.bus, self._state
        bucket_changed = asyncio.Event()
        summaries = BucketWatch(bus, SandboxSummary.bucket, state.change_summary, bucket_changed)
        ledgers = BucketWatch(bus, BudgetBlocks.bucket, state.change_ledger, bucket_changed)
        budget_messages = BudgetMessages(bus, service.meters, service.settings.budget_grace)
        self._handler = BudgetRequestHandler(bus, state, (summaries, ledgers), budget_messages)
        self._ready.set()
        lease = Lease(bus, LEASE, service.instance)
        service.health.add(LEASE, lease.problem)
        service.meters.watch("sandherd_lease_held", lambda: lease.held, lease=LEASE)
        enforcement = BudgetEnforcement(bus, lease, state, budget_messages, service.meters)
        work = enforcement.run((summaries, ledgers), service.settings.check_interval)
        await run_until_first(summaries.follow(), ledgers.follow(), lease.run_with(work))

    def _answerer(self, request: type[Request[Any]]) -> Answerer:
        async def answer(incoming: IncomingRequest[Any]) -> AnyAnswer:
            await self._ready.wait()
            return await self._handler.handlers[request](incoming)

        return answer
