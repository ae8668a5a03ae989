"""What is asked of sandboxes durably: make one without a task, pause, resume, extend, end."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from sandherd.bus.connection import Bus
from sandherd.bus.consuming import DONE, Dead, Delivery, Outcome, Retry
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
from sandherd.contracts.events.lifecycle import SandboxRefused
from sandherd.contracts.specs import Limits
from sandherd.telemetry import logs
from sandherd.telemetry.traceparents import new_traceparent
from spawner.live import Live
from spawner.records.quota import Quota
from spawner.records.store import Held
from spawner.refusing import may_come, refusal_event
from spawner.resolving import Menu, Refusal, project_refusal, resolve
from spawner.runtimes.contract import Runtime
from spawner.sandboxes import asking, decisions
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.record import SandboxRecord

Decide = Callable[[SandboxRecord], SandboxRecord | Refusal]
Claim = Callable[[str, str | None, str, Limits, datetime], Awaitable[str | None]]
"""Claims a unit of the pool for the sandbox of a key: `pool.Pool.claim`."""
_log: Final = logs.get("commands")


class SandboxCommands:
    """Obeys the commands about sandboxes. What can't be done is said as `sandbox.refused`, to whoever waits for it."""

    def __init__(
        self,
        bus: Bus,
        live: Live,
        *,
        runtimes: Mapping[str, Runtime],
        menu: Menu,
        admission: Admission,
        claim: Claim,
        quota: Quota,
    ) -> None:
        """`quota` is of the bucket `sandboxes`."""
        self._quota = quota
        self._bus = bus
        self._live = live
        self._runtimes = runtimes
        self._menu = menu
        self._admission = admission
        self._claim = claim

    async def obey(self, command: Envelope[Any], delivery: Delivery) -> Outcome:
        """One command, to its end."""
        match command.data:
            case CreateSandbox():
                return await self._create(command, delivery)
            case SandboxCommand():
                return await self._change(command, delivery)
            case _:
                return Dead(Problem(code=Code.UNKNOWN_TYPE, message=f"{command.type} is not known here"))

    async def _create(self, command: Envelope[CreateSandbox], delivery: Delivery) -> Outcome:
        asked = command.data
        resolved = (
            project_refusal(command.project) or asking.name_refusal(asked.sandbox) or resolve(asked.spec, self._menu)
        )
        if not isinstance(resolved, Refusal) and asked.spec.secrets:
            resolved = await self._live.secrets.refusal(command.project, asked.spec.secrets) or resolved
        if isinstance(resolved, Refusal):
            return await self._refuse(command, resolved, delivery)
        record = asking.requested_alone(command, resolved, self._menu, self._live.now(), new_traceparent())
        held = await self._live.sandboxes.load(record.key) or await self._make(record)
        if isinstance(held, Refusal):
            return await self._refuse(command, held, delivery)
        if not asking.same_sandbox(held.record, command, resolved):
            return await self._refuse(command, asking.taken(asked.sandbox), delivery)
        await self._live.flush_sandbox(held)
        return DONE

    async def _make(self, record: SandboxRecord) -> Held[SandboxRecord] | Refusal:
        """Make it, or say why it can't be made beside those that are there."""
        # Looked at first: whoever is admitted and makes nothing keeps the others waiting.
        index = self._live.sandbox_index
        if any(view.sandbox == record.sandbox for view in index.views()):
            return asking.taken(record.sandbox)
        if lacks_room := self._quota.refusal(record.project, index.size_of(record.project), index.size()):
            return lacks_room
        async with self._admission.admit(record) as lacking:
            if lacking:
                return Refusal(f"there is no room: {lacking}", "sandbox")
            held, _ = await self._live.sandboxes.create(await self._of_pool(record))
            return held

    async def _of_pool(self, record: SandboxRecord) -> SandboxRecord:
        """The same in a sandbox that was started beforehand, if one of its kind waits."""
        unit = await self._claim(record.key, record.profile, record.runtime, record.limits, record.requested_at)
        return record.model_copy(update={"unit": unit}) if unit else record

    async def _change(self, command: Envelope[SandboxCommand], delivery: Delivery) -> Outcome:
        refusals: list[Refusal] = []

        def decide(record: SandboxRecord) -> SandboxRecord:
            changed = self._decide(command.data, record)
            refusals[:] = [changed] if isinstance(changed, Refusal) else []
            return record if isinstance(changed, Refusal) else changed

        held = await self._live.change_sandbox(f"{command.project}.{command.data.sandbox}", decide)
        if held is None:
            if may_come(delivery):
                return Retry(0.5, f"no sandbox {command.data.sandbox} yet")
            refusals.append(Refusal(f"there is no sandbox {command.data.sandbox}", "sandbox"))
        for refused in refusals:
            return await self._refuse(command, refused, delivery)
        return DONE

    def _decide(self, command: SandboxCommand, record: SandboxRecord) -> SandboxRecord | Refusal:
        now = self._live.now()
        match command:
            case TerminateSandbox(reason=reason):
                return decisions.stopping(record, reason or "terminated", now)
            case PauseSandbox(reason=reason):
                runtime = self._runtimes.get(record.runtime)
                return asking.paused_by(record, reason, can_pause=bool(runtime and runtime.capabilities.can_pause))
            case ResumeSandbox():
                return asking.resumed_by(record)
            case ExtendSandbox(seconds=seconds):
                return asking.extended_by(record, seconds, now, self._menu.max_ttl)
            case _:
                return Refusal(f"{command.type} is not known here", "type")

    async def _refuse(self, command: Envelope[Any], refused: Refusal, delivery: Delivery) -> Outcome:
        _log.info("refused", command=command.type, sandbox=command.data.sandbox, reason=refused.reason)
        self._live.meters.count("sandherd_refusals_total", command=command.type)
        said = SandboxRefused(command=command.type, reason=refused.reason, field=refused.field)
        await self._bus.publish_event(
            refusal_event(self._bus.ids, command, said, delivery, sandbox=command.data.sandbox)
        )
        return DONE
