"""What is asked and what is answered: the first answer decides, and is the only one that goes to the agent."""

from datetime import UTC, datetime, timedelta
from typing import Final, cast

from message_relay.approvals import Approvals, Held
from message_relay.asked import Asked, Ref, asked_of
from message_relay.judging import Refusal, answered, inheriting, is_decided_by, refusal, taken_over, withdrawn
from message_relay.outliving import Outliving
from message_relay.saying import Saying
from message_relay.wording import message_of, rejected, requested
from sandherd.bus.consuming import DONE, Delivery, Outcome, Retry
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.tools import AgentApprovalRequested, AgentApprovalWithdrawn
from sandherd.contracts.reading import read_event
from sandherd.telemetry import logs

PATIENCE: Final = timedelta(seconds=5)
"""So long after an answer its question may come to be known: the two come by different ways."""
_TRIES: Final = 8
"""So often a question that is withdrawn is looked for: it may be in another's hands just now."""
_UNTIL_IT_IS_KNOWN: Final = Retry(0.25, "nobody is known to ask that")
_AT_ONCE: Final = Retry(0.05, "another answer came in between")
_log: Final = logs.get("approvals")


class Answering:
    """Takes in questions, and decides them by answers."""

    def __init__(self, approvals: Approvals, outliving: Outliving, saying: Saying, most_open: int = 100) -> None:
        self._most_open = most_open
        self._approvals = approvals
        self._outliving = outliving
        self._saying = saying

    async def hear(self, delivery: Delivery) -> Outcome:
        """An agent asks. Raises `ContractError` for what breaks the contract.

        Asked again under the same name, as by a worker that was started again, it is the same approval. Asked again by
        the next attempt, it takes the place of the one before.
        """
        event = cast("Envelope[AgentApprovalRequested]", read_event(delivery.subject, delivery.data))
        asked = asked_of(event, delivery.at, await self._outliving.whose(event.project, event.subject))
        if await self._is_one_too_many(asked):
            await self._saying.say_rejected(asked, rejected(asked, self._most_open), datetime.now(UTC))
            return DONE
        held = await self._approvals.write(asked, None)
        held = held or await self._approvals.load(asked.project, asked.sandbox, asked.approval_id)
        if held is None:
            return _AT_ONCE
        if held.asked.asked_in != asked.asked_in:
            _log.info("asked again", sandbox=asked.sandbox, approval=asked.approval_id)
            return DONE
        await self._saying.say_asked(held.asked, requested(held.asked), datetime.now(UTC))
        return DONE if await self._succeed(held) else _AT_ONCE

    async def _is_one_too_many(self, asked: Asked) -> bool:
        """Whether it is new, and its sandbox has as many open approvals as it may have."""
        if self._approvals.open_in(asked.project, asked.sandbox) < self._most_open:
            return False
        return await self._approvals.load(asked.project, asked.sandbox, asked.approval_id) is None

    async def withdraw(self, delivery: Delivery) -> Outcome:
        """An agent waits for leave no more. Raises `ContractError` for what breaks the contract."""
        event = cast("Envelope[AgentApprovalWithdrawn]", read_event(delivery.subject, delivery.data))
        held = await self._approvals.load(event.project, event.subject, event.data.approval_id)
        now = datetime.now(UTC)
        if held is None:
            return _UNTIL_IT_IS_KNOWN if delivery.deliveries < _TRIES or now - delivery.at < PATIENCE else DONE
        over = withdrawn(held.asked, event.data.reason, now)
        if over is not None:
            held = await self._approvals.write(over, held)
            if held is None:
                return _AT_ONCE
        await self.conclude(held)
        return DONE

    async def decide(
        self, command: Envelope[AnswerApproval], at: datetime
    ) -> tuple[InboxMessage, Refusal | None] | Retry:
        """The answer as a message, and why it does not count; without that it is to be kept for the agent.

        An answer to what was asked again since decides the one that is asked now. An answer that is handled again
        finds that it decided the approval itself, and goes on from there.
        """
        data, now = command.data, datetime.now(UTC)
        ref = Ref(sandbox=data.sandbox, approval_id=data.approval_id)
        held = await self._approvals.latest(command.project, ref)
        if held is None or not is_decided_by(held.asked, data):
            asked = held.asked if held else None
            gone = await self._outliving.ended(asked, command.project, asked.sandbox if asked else data.sandbox)
            if held is None and gone is None and now - at < PATIENCE:
                return _UNTIL_IT_IS_KNOWN
            refused = refusal(asked, data, now, gone)
            if held is None or refused is not None:
                return message_of(command, at, None), refused
            held = await self._approvals.write(answered(held.asked, data, now), held)
            if held is None:
                return _AT_ONCE
        await self.conclude(held)
        return message_of(command, at, held.asked), None

    async def conclude(self, held: Held) -> None:
        """Say what was decided, and note that it was said, and that it may be forgotten. Safe to repeat."""
        asked = held.asked
        if asked.decision is None:
            return
        if not asked.said:
            await self._saying.say_decided(asked, asked.decision)
        if not asked.waits:
            await self._approvals.let_go(asked)
        if not asked.said:
            await self._approvals.write(asked.model_copy(update={"said": True}), held)

    async def _succeed(self, held: Held) -> bool:
        """Take the place of what the attempt before has asked, with the answer to it. False if another came between.

        That this one has asked it last is written at the end: until then it is done again, by whoever hears it.
        """
        asked = held.asked
        if asked.question is None:
            return True
        led = await self._approvals.asker(asked)
        if led.asker is None:
            return await self._approvals.lead(asked, led)
        if led.asker.ref == asked.ref or led.asker.attempt > asked.attempt:
            return True
        before = await self._approvals.latest(asked.project, led.asker.ref, asked.ref)
        if before is not None and before.asked.attempt < asked.attempt and not await self._take_over(before, held):
            return False
        return await self._approvals.lead(asked, led)

    async def _take_over(self, before: Held, held: Held) -> bool:
        """False if another came between."""
        ref = held.asked.ref
        if before.asked.next != ref:
            taken = taken_over(before.asked, ref, datetime.now(UTC))
            if taken is None:
                return True
            written = await self._approvals.write(taken, before)
            if written is None:
                return False
            before = written
        await self.conclude(before)
        heir = inheriting(held.asked, before.asked)
        if heir is None:
            return True
        written = await self._approvals.write(heir, held)
        if written is None:
            return False
        await self.conclude(written)
        return True
