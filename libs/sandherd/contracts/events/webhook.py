"""Events of the message-relay about webhooks."""

from typing import ClassVar

from sandherd.contracts.events.base import Emitter, EventData, Tone
from sandherd.contracts.model import Count, Moment


class WebhookDisabled(EventData):
    """The receiver accepted nothing for so long, or wants no more, that nothing is sent until a user resumes it."""

    type: ClassVar[str] = "webhook.disabled"
    emitted_by: ClassVar[Emitter] = "message-relay"
    counts_as_work: ClassVar[bool] = False
    closes_source: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "attention"
    reason: str
    """The last failure, without the URL, which may contain a secret."""
    failing_since: Moment
    """Since when the receiver accepted nothing."""
    position: Count
    """Every event up to this stream sequence is handled; delivery continues behind it."""

    def summarize(self) -> str:
        return f"accepted nothing since {self.failing_since:%Y-%m-%d %H:%M} UTC: {self.reason}"
