"""The workers in the boxes: they request their credential, run an agent if they may, and publish its end."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sandherd.bus.identity import Key, KeyKind
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentShutdown, AgentStarted
from sandherd.contracts.names import derived_uuid
from sandherd.contracts.requests import GetCredential
from sandherd.service.service import IncomingRequest
from tests.integration.spawner.scripted.runtime import Box, Doing

if TYPE_CHECKING:
    from tests.integration.spawner.scripted.instance import Instance
    from tests.integration.spawner.scripted.world import World

_DRAINED: Final = 0
_REFUSED: Final = 4
OUTCOMES: Final[tuple[EventData, ...]] = (
    AgentCompleted(exit_code=0),
    AgentFailed(error="exit status 1", error_type="exit_status", exit_code=1),
    AgentFailed(error="the worker broke", error_type="internal"),
    AgentFailed(error="killed", error_type="signal", signal=9),
)


@dataclass
class Workers:
    """The behaviour of workers, the same in every box."""

    world: "World"
    outcomes: dict[str, str] = field(default_factory=dict)
    """The type of the first end of each sandbox's agent."""
    _published: int = 0

    async def join(self, box: Box, spawner: "Instance") -> None:
        """Use the credential that came with the identity, or request one, and continue as the reply says."""
        plan, run = box.plan, box.runs
        if plan is None or not box.alive or box.paused or box.doing not in {Doing.JOINING, Doing.RECOVERING}:
            return
        issued = box.doing is Doing.JOINING and plan.grant is not None and run == 1
        if issued and box.key not in self.world.revoked:  # the broker checks this when the worker connects
            self._answered(box, run, may_start=True)
            return
        requested: IncomingRequest[Any] = IncomingRequest(
            GetCredential(public_key=box.key or Key.new(KeyKind.USER).public, fence=plan.fence),
            {"project": plan.project, "sandbox": plan.sandbox},
        )
        try:
            grant = await spawner.grant(requested)
        except ContractError:
            self._answered(box, run, may_start=None)
        else:
            self._answered(box, run, may_start=grant.may_start)

    def _answered(self, box: Box, run: int, *, may_start: bool | None) -> None:
        if not box.alive or box.runs != run or box.paused:
            return  # no subscriber exists any more, or it is requested again
        if may_start is None:
            box.finish(_REFUSED)
        elif box.doing is Doing.RECOVERING:
            self._recover(box)
        elif box.doing is Doing.JOINING:
            self._start(box) if may_start else box.finish(_DRAINED)

    def _start(self, box: Box) -> None:
        assert box.plan is not None
        plan = box.plan
        box.doing = Doing.AGENT if plan.task else Doing.SERVING
        if plan.task:
            self.world.agent_begins(box, plan)
        started = AgentStarted(
            timestamp=self.world.now(), sdk="command" if plan.task else "none", task=plan.task or "",
            task_description_length=1,
        )  # fmt: skip
        box.spool.append(self._event(box, started))
        self.publish_next(box)

    def _recover(self, box: Box) -> None:
        if box.plan and box.plan.task and not box.ended_published:
            self._end(box, AgentFailed(error="its worker was lost", error_type="worker_lost"))
        self.publish_next(box)
        box.finish(_DRAINED)

    def agent_ends(self, box: Box, outcome: EventData, *, published: bool) -> None:
        """End the agent. Events that its worker has not published are published when it is stopped, or recovered."""
        if not box.runs_agent or box.paused:
            return
        self._end(box, outcome)
        box.doing = Doing.PUBLISHED_END
        if published:
            self.publish_next(box)

    def stop(self, box: Box) -> None:
        """End the worker on request: its agent is ended, and all events are published."""
        if box.runs_agent:
            self._end(box, AgentFailed(error="it was stopped", error_type="stopped"))
            box.doing = Doing.PUBLISHED_END
        box.spool.append(self._event(box, AgentShutdown(reason="stopped", timestamp=self.world.now())))
        self.publish_next(box)

    def publish_next(self, box: Box) -> None:
        """Publish the events in the spool."""
        self.world.received.extend(box.spool)
        self.world.waiting_events.extend(box.spool)
        box.spool.clear()

    def _end(self, box: Box, outcome: EventData) -> None:
        assert box.plan is not None
        box.ended_published = True
        self.outcomes.setdefault(box.plan.sandbox, outcome.type)
        box.spool.append(self._event(box, outcome))

    def _event(self, box: Box, data: EventData) -> Envelope[Any]:
        assert box.plan is not None
        self._published += 1
        plan, now = box.plan, self.world.now()
        return wrap(
            data, data.type, source=f"/sandherd/sandbox/{plan.sandbox}", sequence=self._published, project=plan.project,
            subject=plan.sandbox, time=now, sandboxid=plan.sandbox, taskid=plan.task,
            id=derived_uuid(now, "event", self._published),
        )  # fmt: skip
