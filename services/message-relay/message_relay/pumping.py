"""The pump of one sandbox: its first message into its worker's hands, its end said, the next. It remembers nothing."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from pydantic import ValidationError

from message_relay.deciding import (
    Ended,
    Step,
    acknowledged,
    delivered,
    ended,
    expired,
    may_hear,
    next_step,
    rejection,
)
from message_relay.handing import Handing, Left, Way
from message_relay.inbox import Inbox, Key, Waiting
from message_relay.recorded import Recorded
from message_relay.records import recorded_of
from message_relay.saying import ACKNOWLEDGED, ENDED, Saying
from sandherd.bus.connection import Bus, NoResponderError, RequestTimeoutError
from sandherd.contracts.delivery import InboxMessage, Receipt
from sandherd.contracts.events.message import MessageExpired, MessageRejected
from sandherd.contracts.subjects import DELIVER
from sandherd.telemetry import logs, spans
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.traces import record

RECEIPT_WITHIN: Final = 5.0
"""How long a worker has to answer, in seconds. An answer that comes later is not lost: the message is handed again,
and the worker knows it by its id."""
_MOST_LOOKED_AT: Final = 256
URGENT: Final = frozenset({"approval", "interrupt"})
"""What an agent may have to hear before it can take what stands in front of it."""
_log: Final = logs.get("pump")


class Pump:
    """Hands over what waits. `check` raises when another relay has taken over, and is asked before every act."""

    def __init__(
        self, bus: Bus, inbox: Inbox, saying: Saying, handing: Handing, meters: Meters, *, check: Callable[[], None]
    ) -> None:
        self._bus = bus
        self._inbox = inbox
        self._saying = saying
        self._handing = handing
        self._meters = meters
        self._check = check

    async def drain(self, key: Key, *, overtake: bool = False) -> Left:
        """Hand over everything that waits, in order; with `overtake`, what is urgent first.

        A worker that is silent about a message may be waiting for leave, which is answered behind it. What waits for
        the next attempt keeps nothing behind it waiting.
        """
        known = await recorded_of(self._bus, *key)
        if overtake and ended(key[1], known) is None and may_hear(known):
            await self._hand_urgent(key, known)
        after, left = 0, Left.NOTHING
        while (waiting := await self._inbox.first(key, after)) is not None:
            self._check()
            found = await self._lead(waiting, key, known)
            if found is Left.NEXT:
                after, left = waiting.number, Left.NEXT
            elif found in {Left.AWAY, Left.SILENT}:
                return found
        return left

    async def _lead(self, waiting: Waiting, key: Key, known: Recorded | None) -> Left:
        """Bring one message to its end, or say why it is left."""
        way = await self._handing.way(waiting.message)
        if way is not None:
            found = await self._lead_answer(waiting, way)
            # Elsewhere somebody may be away; those behind it are for here.
            return Left.NEXT if found in {Left.AWAY, Left.SILENT} and way.message.sandbox != key[1] else found
        return await self._lead_other(waiting, key, known)

    async def _lead_other(self, waiting: Waiting, key: Key, known: Recorded | None) -> Left:
        step = next_step(waiting.message, datetime.now(UTC), ended(key[1], known))
        if step is Step.HAND:
            if not may_hear(known):
                return Left.AWAY
            receipt = await self._hand(waiting.message)
            if isinstance(receipt, Receipt):
                await self._conclude(waiting, receipt)
                return Left.NOTHING
            known = await recorded_of(self._bus, *key)
            if ended(key[1], known) is None:
                return receipt
        await self._give_up(waiting, ended(key[1], known))
        return Left.NOTHING

    async def _lead_answer(self, waiting: Waiting, way: Way) -> Left:
        """The same of an answer, which may have to go to the sandbox of a later attempt."""
        if next_step(way.message, datetime.now(UTC), way.gone) is not Step.HAND:
            if await self._handing.settle(way):
                await self._give_up(waiting, way.gone)
            return Left.NOTHING
        if way.left is not None:
            return way.left
        handed = await self._handing.hand(way, self._knock, self._hand)
        if isinstance(handed.receipt, Left):
            return handed.receipt
        if handed.receipt.outcome == "rejected" and not await self._handing.settle(handed.way):
            return Left.CHANGED
        await self._conclude(waiting, handed.receipt, handed.way)
        return Left.NOTHING

    async def _hand_urgent(self, key: Key, known: Recorded | None) -> None:
        """Hand over what is urgent, in its own order, until the worker is silent about that, too."""
        after = 0
        for _ in range(_MOST_LOOKED_AT):
            waiting = await self._inbox.first(key, after)
            if waiting is None:
                return
            after = waiting.number
            hand = next_step(waiting.message, datetime.now(UTC), None) is Step.HAND
            if hand and waiting.message.message_type in URGENT:
                self._check()
                if await self._lead(waiting, key, known) in {Left.AWAY, Left.SILENT}:
                    return

    async def expire(self, key: Key) -> datetime | None:
        """End what has waited too long, also behind others. Returns when the next one is due, as far as was looked."""
        due: list[datetime] = []
        after = 0
        for _ in range(_MOST_LOOKED_AT):
            waiting = await self._inbox.first(key, after)
            if waiting is None:
                break
            after = waiting.number
            way = await self._handing.way(waiting.message)
            message = waiting.message if way is None else way.message
            if next_step(message, datetime.now(UTC), None) is not Step.EXPIRE:
                due.append(message.expires_at)
                continue
            self._check()
            if way is None or await self._handing.settle(way):
                await self._give_up(waiting, None)
        return min(due, default=None)

    async def _knock(self, message: InboxMessage) -> Left | None:
        """Whether its worker is away or silent; None if it is there."""
        subject = DELIVER.fill(project=message.project, sandbox=message.sandbox)
        try:
            await self._bus.request(subject, b"", timeout=RECEIPT_WITHIN)
        except NoResponderError:
            return Left.AWAY
        except RequestTimeoutError:
            return Left.SILENT
        return None

    async def _hand(self, message: InboxMessage) -> Receipt | Left:
        """The worker's receipt, or that it is away, or says nothing that is one."""
        subject = DELIVER.fill(project=message.project, sandbox=message.sandbox)
        payload = message.model_dump_json(exclude_none=True).encode()
        try:
            receipt = Receipt.model_validate_json(await self._bus.request(subject, payload, timeout=RECEIPT_WITHIN))
        except NoResponderError:
            return Left.AWAY
        except RequestTimeoutError:
            return Left.SILENT
        except ValidationError:
            _log.warning("an answer that is no receipt", sandbox=message.sandbox, message=message.message)
            return Left.SILENT
        return receipt if receipt.message == message.message else Left.SILENT

    async def _conclude(self, waiting: Waiting, receipt: Receipt, way: Way | None = None) -> None:
        """The worker has answered: say so, then let the message go, and with it the use of an answer."""
        self._check()
        message = waiting.message
        if receipt.outcome == "rejected":
            await self._end(waiting, rejection(message, receipt.reason or "the worker refused it"))
            return
        now = datetime.now(UTC)
        took = max(0.0, (now - message.sent_at).total_seconds())
        self._meters.observe("sandherd_message_delivery_seconds", took)
        record(spans.DELIVER, message.traceparent, message.sent_at, now, _told(message))
        await self._saying.say(message, ENDED, delivered(message, took * 1000), now)
        await self._saying.say(message, ACKNOWLEDGED, acknowledged(message), datetime.now(UTC))
        if way is not None:
            await self._handing.settle(way)
        await self._inbox.remove(waiting.number)

    async def _give_up(self, waiting: Waiting, gone: Ended | None) -> None:
        """Nobody will take it: it is rejected if its sandbox is gone, else it has expired."""
        message = waiting.message
        waited = max(0.0, (datetime.now(UTC) - message.sent_at).total_seconds())
        await self._end(waiting, rejection(message, gone.reason) if gone else expired(message, waited * 1000))

    async def _end(self, waiting: Waiting, data: MessageRejected | MessageExpired) -> None:
        """Say that it did not arrive; unless a relay that was killed has said that it did."""
        message = waiting.message
        if await self._saying.was_delivered(message):
            await self._saying.say(message, ACKNOWLEDGED, acknowledged(message), datetime.now(UTC))
        else:
            await self._saying.say(message, ENDED, data, datetime.now(UTC))
        await self._inbox.remove(waiting.number)


def _told(message: InboxMessage) -> spans.Values:
    return {
        spans.PROJECT: message.project,
        spans.SANDBOX_ID: message.sandbox,
        spans.MESSAGE_ID: message.message,
    }
