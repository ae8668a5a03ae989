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
from message_relay.inbox import Inbox, Key, Waiting
from message_relay.records import recorded_of
from message_relay.saying import ACKNOWLEDGED, ENDED, Saying
from sandherd.bus.connection import Bus, NoResponderError, RequestTimeoutError
from sandherd.contracts.delivery import InboxMessage, Receipt
from sandherd.contracts.events.message import MessageExpired, MessageRejected
from sandherd.contracts.subjects import DELIVER
from sandherd.telemetry import logs
from sandherd.telemetry.metrics import Meters

RECEIPT_WITHIN: Final = 5.0
"""How long a worker has to answer, in seconds. An answer that comes later is not lost: the message is handed again,
and the worker knows it by its id."""
_MOST_LOOKED_AT: Final = 256
_log: Final = logs.get("pump")


class Pump:
    """Hands over what waits. `check` raises when another relay has taken over, and is asked before every act."""

    def __init__(self, bus: Bus, inbox: Inbox, saying: Saying, meters: Meters, *, check: Callable[[], None]) -> None:
        self._bus = bus
        self._inbox = inbox
        self._saying = saying
        self._meters = meters
        self._check = check

    async def drain(self, key: Key) -> bool:
        """Hand over everything that waits, in order. False if the worker is away or frozen, and something is left."""
        known = await recorded_of(self._bus, *key)
        while (waiting := await self._inbox.first(key)) is not None:
            self._check()
            step = next_step(waiting.message, datetime.now(UTC), ended(key[1], known))
            if step is Step.HAND:
                if not may_hear(known):
                    return False
                receipt = await self._hand(waiting.message)
                if receipt is not None:
                    await self._conclude(waiting, receipt)
                    continue
                known = await recorded_of(self._bus, *key)
                if ended(key[1], known) is None:
                    return False
            await self._give_up(waiting, ended(key[1], known))
        return True

    async def expire(self, key: Key) -> datetime | None:
        """End what has waited too long, also behind others. Returns when the next one is due, as far as was looked."""
        due: list[datetime] = []
        after = 0
        for _ in range(_MOST_LOOKED_AT):
            waiting = await self._inbox.first(key, after)
            if waiting is None:
                break
            after = waiting.number
            if next_step(waiting.message, datetime.now(UTC), None) is Step.EXPIRE:
                self._check()
                await self._give_up(waiting, None)
            else:
                due.append(waiting.message.expires_at)
        return min(due, default=None)

    async def _hand(self, message: InboxMessage) -> Receipt | None:
        """The worker's receipt; None if it is away, or says something that is none."""
        subject = DELIVER.fill(project=message.project, sandbox=message.sandbox)
        payload = message.model_dump_json(exclude_none=True).encode()
        try:
            receipt = Receipt.model_validate_json(await self._bus.request(subject, payload, timeout=RECEIPT_WITHIN))
        except (NoResponderError, RequestTimeoutError):
            return None
        except ValidationError:
            _log.warning("an answer that is no receipt", sandbox=message.sandbox, message=message.message)
            return None
        return receipt if receipt.message == message.message else None

    async def _conclude(self, waiting: Waiting, receipt: Receipt) -> None:
        """The worker has answered: say so, then let the message go."""
        self._check()
        message = waiting.message
        if receipt.outcome == "rejected":
            await self._end(waiting, rejection(message, receipt.reason or "the worker refused it"))
            return
        now = datetime.now(UTC)
        took = max(0.0, (now - message.sent_at).total_seconds())
        self._meters.observe("sandherd_message_delivery_seconds", took)
        await self._saying.say(message, ENDED, delivered(message, took * 1000), now)
        await self._saying.say(message, ACKNOWLEDGED, acknowledged(message), datetime.now(UTC))
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
