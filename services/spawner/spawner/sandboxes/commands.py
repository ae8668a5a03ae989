"""Handles the commands about sandboxes: create without a task, pause, resume, extend, terminate."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import DONE, Dead, Delivery, Outcome, Retry
from sandherd.contracts.commands import (
    CreateSandbox,
    ExtendSandbox,
    PauseSandbox,
    ResumeSandbox,
    SandboxCommand,
    TerminateSandbox,
)
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.sandbox import SandboxRefused
from sandherd.telemetry import logs
from sandherd.telemetry.traceparents import new_traceparent
from spawner.live_state import LiveState
from spawner.records.quota import Quota
from spawner.records.store import StoredRecord
from spawner.refusal_events import may_arrive_later, refusal_event
from spawner.runtimes.contract import Runtime
from spawner.sandboxes import command_decisions
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.spec_resolution import Refusal, SpawnPolicy, project_refusal, resolve

Assign = Callable[[SandboxRecord, datetime], Awaitable[SandboxRecord]]
"""Adds a warm sandbox from the pool to the record: `pool.Pool.assign`."""
_log: Final = logs.get("commands")


class SandboxCommands:
    """Handles the commands about sandboxes. A rejection is published as `sandbox.refused`, for the waiting client."""

    def __init__(
        self,
        bus: Bus,
        live: LiveState,
        *,
        runtimes: Mapping[str, Runtime],
        menu: SpawnPolicy,
        admission: Admission,
        assign: Assign,
        quota: Quota,
    ) -> None:
        """`quota`: the quota of the bucket `sandboxes`."""
        self._quota = quota
        self._bus = bus
        self._live = live
        self._runtimes = runtimes
        self._menu = menu
        self._admission = admission
        self._assign = assign

    async def handle(self, command: Envelope[Any], delivery: Delivery) -> Outcome:
        """Handle one command."""
        match command.data:
            case CreateSandbox():
                return await self._create(command, delivery)
            case SandboxCommand():
                return await self._change(command, delivery)
            case _:
                return Dead(Problem(code=Code.UNKNOWN_TYPE, message=f"{command.type} is not known here"))

    async def _create(self, command: Envelope[CreateSandbox], delivery: Delivery) -> Outcome:
        request = command.data
        resolved = (
            project_refusal(command.project)
            or command_decisions.name_refusal(request.sandbox)
            or resolve(request.spec, self._menu)
        )
        if not isinstance(resolved, Refusal) and request.spec.secrets:
            resolved = await self._live.secrets.refusal(command.project, request.spec.secrets) or resolved
        if isinstance(resolved, Refusal):
            return await self._refuse(command, resolved, delivery)
        record = command_decisions.requested_alone(command, resolved, self._menu, self._live.now(), new_traceparent())
        held = await self._live.sandboxes.load(record.key) or await self._make(record)
        if isinstance(held, Refusal):
            return await self._refuse(command, held, delivery)
        if not command_decisions.same_sandbox(held.record, command, resolved):
            return await self._refuse(command, command_decisions.name_in_use(request.sandbox), delivery)
        await self._live.flush_sandbox(held)
        return DONE

    async def _make(self, record: SandboxRecord) -> StoredRecord[SandboxRecord] | Refusal:
        """Create the record, or refuse it because of existing sandboxes."""
        # Checked before the admission: an admission that creates no record delays the others.
        index = self._live.sandbox_index
        if any(view.sandbox == record.sandbox for view in index.views()):
            return command_decisions.name_in_use(record.sandbox)
        if over_quota := self._quota.refusal(record.project, index.size_of(record.project), index.size()):
            return over_quota
        async with self._admission.admit(record) as exhausted:
            if exhausted:
                return Refusal(f"no capacity: {exhausted}", "sandbox", Code.BUSY)
            held, _ = await self._live.sandboxes.create(await self._assign(record, record.requested_at))
            return held

    async def _change(self, command: Envelope[SandboxCommand], delivery: Delivery) -> Outcome:
        refusals: list[Refusal] = []

        def decide(record: SandboxRecord) -> SandboxRecord:
            changed = self._decide(command, record)
            refusals[:] = [changed] if isinstance(changed, Refusal) else []
            return record if isinstance(changed, Refusal) else changed

        held = await self._live.change_sandbox(f"{command.project}.{command.data.sandbox}", decide)
        if held is None:
            if may_arrive_later(delivery):
                return Retry(0.5, f"no sandbox {command.data.sandbox} yet")
            refusals.append(Refusal(f"there is no sandbox {command.data.sandbox}", "sandbox", Code.NOT_FOUND))
        for refused in refusals:
            return await self._refuse(command, refused, delivery)
        return DONE

    def _decide(self, command: Envelope[Any], record: SandboxRecord) -> SandboxRecord | Refusal:
        now = self._live.now()
        match command.data:
            case TerminateSandbox():
                return command_decisions.terminated_by(record, command, now)
            case PauseSandbox(reason=reason):
                runtime = self._runtimes.get(record.runtime)
                return command_decisions.paused_by(
                    record, reason, can_pause=bool(runtime and runtime.capabilities.can_pause)
                )
            case ResumeSandbox():
                return command_decisions.resumed_by(record)
            case ExtendSandbox(seconds=seconds):
                return command_decisions.extended_by(record, seconds, now, self._menu.max_ttl)
            case _:
                return Refusal(f"{command.type} is not known here", "type")

    async def _refuse(self, command: Envelope[Any], refused: Refusal, delivery: Delivery) -> Outcome:
        _log.info("command rejected", command=command.type, sandbox=command.data.sandbox, reason=refused.reason)
        self._live.meters.count("sandherd_refusals_total", command=command.type)
        event = SandboxRefused(
            command=command.type,
            reason=refused.reason,
            field=refused.field,
            code=refused.code,
            command_id=str(command.id),
            command_sequence=delivery.stream_sequence,
        )
        await self._bus.publish_event(
            refusal_event(self._bus.ids, command, event, delivery, sandbox=command.data.sandbox)
        )
        return DONE
