"""Events of the message-relay about webhooks."""

from typing import ClassVar

from sandherd.contracts.events.base import Emitter, EventData, Tone
from sandherd.contracts.model import Count, Moment


class WebhookDisabled(EventData):
    """The webhook is disabled: its receiver accepts nothing or wants no more, or its URL is not permitted any more.

    Nothing is sent until a user resumes the webhook.
    """

    type: ClassVar[str] = "webhook.disabled"
    emitted_by: ClassVar[Emitter] = "message-relay"
    counts_as_work: ClassVar[bool] = False
    closes_source: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "attention"
    reason: str
    """The last failure, without the URL, which may contain a secret."""
    failing_since: Moment
    """The time since which the receiver has accepted nothing."""
    position: Count
    """Every event up to this stream sequence is handled; delivery continues after it."""

    def summarize(self) -> str:
        return f"accepted nothing since {self.failing_since:%Y-%m-%d %H:%M} UTC: {self.reason}"
