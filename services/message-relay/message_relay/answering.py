"""What is asked and what is answered: the first answer decides, and is the only one that goes to the agent."""

from datetime import UTC, datetime, timedelta
from typing import Final, cast

from message_relay.approvals import Approvals, Held
from message_relay.asked import Refusal, answered, asked_of, is_decided_by, message_of, refusal, requested
from message_relay.deciding import ended
from message_relay.records import recorded_of
from message_relay.saying import Saying
from sandherd.bus.connection import Bus
from sandherd.bus.consuming import DONE, Delivery, Outcome, Retry
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.tools import AgentApprovalRequested
from sandherd.contracts.reading import read_event
from sandherd.telemetry import logs

PATIENCE: Final = timedelta(seconds=5)
"""So long after an answer its question may come to be known: the two come by different ways."""
_UNTIL_IT_IS_KNOWN: Final = Retry(0.25, "nobody is known to ask that")
_AT_ONCE: Final = Retry(0.05, "another answer came in between")
_log: Final = logs.get("approvals")


class Answering:
    """Takes in questions, and decides them by answers."""

    def __init__(self, bus: Bus, approvals: Approvals, saying: Saying) -> None:
        self._bus = bus
        self._approvals = approvals
        self._saying = saying

    async def hear(self, delivery: Delivery) -> Outcome:
        """An agent asks. Raises `ContractError` for what breaks the contract.

        Asked again under the same name, as by a worker that was started again, it is the same approval.
        """
        event = cast("Envelope[AgentApprovalRequested]", read_event(delivery.subject, delivery.data))
        asked = asked_of(event, delivery.at)
        held = await self._approvals.write(asked, None)
        held = held or await self._approvals.load(asked.project, asked.sandbox, asked.approval_id)
        if held is None:
            return _AT_ONCE
        if held.asked.asked_in == asked.asked_in:
            await self._saying.say_asked(held.asked, requested(held.asked), datetime.now(UTC))
        else:
            _log.info("asked again", sandbox=asked.sandbox, approval=asked.approval_id)
        return DONE

    async def decide(
        self, command: Envelope[AnswerApproval], at: datetime
    ) -> tuple[InboxMessage, Refusal | None] | Retry:
        """The answer as a message, and why it does not count; without that it is to be kept for the agent.

        An answer that is handled again finds that it decided the approval itself, and goes on from there.
        """
        data, now = command.data, datetime.now(UTC)
        held = await self._approvals.load(command.project, data.sandbox, data.approval_id)
        if held is None or not is_decided_by(held.asked, data):
            gone = ended(data.sandbox, await recorded_of(self._bus, command.project, data.sandbox))
            if held is None and gone is None and now - at < PATIENCE:
                return _UNTIL_IT_IS_KNOWN
            refused = refusal(held.asked if held else None, data, now, gone)
            if held is None or refused is not None:
                return message_of(command, at, None), refused
            held = await self._approvals.write(answered(held.asked, data, now), held)
            if held is None:
                return _AT_ONCE
        await self.conclude(held)
        return message_of(command, at, held.asked), None

    async def conclude(self, held: Held) -> None:
        """Say what was decided, and note that it was said. Safe to repeat."""
        asked = held.asked
        if asked.decision is not None and not asked.said:
            await self._saying.say_decided(asked, asked.decision)
            await self._approvals.write(asked.model_copy(update={"said": True}), held)
