"""Which lane a message belongs to: its project, and the sandbox, task or other entity that it is about."""

import json
from typing import Final

from sandherd.bus.fair_queue import Lane
from sandherd.bus.outcomes import Delivery

_EVENT_TOKENS: Final = 7
_NAMES: Final = ("sandbox", "task")


def lane_of(delivery: Delivery) -> Lane:
    """The lane of an event or a command. A command's project is in its subject, its entity only in its document."""
    tokens = delivery.subject.split(".")
    if tokens[2] == "event" and len(tokens) == _EVENT_TOKENS:
        return Lane(tokens[3], tokens[4])
    return Lane(tokens[-1], _commanded(delivery.data))


def _commanded(document: bytes) -> str:
    """The sandbox or the task that a command names. Any document may come: one that names none is of the lane ``."""
    try:
        data = json.loads(document)["data"]
        return next((name for key in _NAMES if isinstance(name := data.get(key), str)), "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
