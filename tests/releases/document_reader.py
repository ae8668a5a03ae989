"""Whether the version whose Python runs this reads what it is given: JSON lines in and out.

In: `[kind, name, document]`. Out: None if it was read, else why not, as an error's code or its beginning; and for an
event how the command shows it live, by its type.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from sandherd.bus.errors import BusError
from sandherd.bus.replies import read_reply
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import REQUESTS
from sandherd.contracts.subjects import command_subject, event_subject

try:
    from sandherd.client.events.decoder import from_live
    from sandherd.contracts.attempt_inputs import Previous
    from sandherd.contracts.decoder import read_command, read_event
    from sandherd.contracts.inbox_messages import InboxMessage, Receipt
except ImportError:  # as these were called in version 0.1
    from sandherd.client.heard import live as from_live  # type: ignore[no-redef, import-not-found]
    from sandherd.contracts.delivery import InboxMessage, Receipt  # type: ignore[no-redef, import-not-found]
    from sandherd.contracts.offers import Previous  # type: ignore[no-redef, import-not-found]
    from sandherd.contracts.reading import read_command, read_event  # type: ignore[no-redef, import-not-found]

DELIVERED: Final[dict[str, type[BaseModel]]] = {"inbox_message": InboxMessage, "receipt": Receipt}


def event(name: str, document: bytes) -> None:
    fields = json.loads(document)
    read_event(event_subject(fields["project"], fields["subject"], name), document)


def live(name: str, document: bytes) -> None:
    fields = json.loads(document)
    shown = from_live(event_subject(fields["project"], fields["subject"], name), document)
    assert shown is not None
    assert (shown.type, shown.sequence) == (name, fields["sequence"])


def reply(name: str, document: bytes) -> None:
    read_reply(document, REQUESTS[name].Answer)


def command(name: str, document: bytes) -> None:
    read_command(command_subject(name, json.loads(document)["project"]), document)


READERS: Final[dict[str, Callable[[str, bytes], Any]]] = {
    "events": event,
    "live": live,
    "commands": command,
    "requests": lambda name, document: REQUESTS[name].model_validate_json(document, strict=True),
    "replies": reply,
    "delivery": lambda name, document: DELIVERED[name].model_validate_json(document, strict=True),
    "task": lambda _name, document: TaskSpec.model_validate_json(document),
    "previous": lambda _name, document: Previous.model_validate_json(document),
}


def verdict(kind: str, name: str, document: Any) -> str | None:
    """None, or why it is not read."""
    try:
        READERS[kind](name, json.dumps(document).encode())
    except ContractError as error:
        return str(error.problem.code)
    except ValidationError as error:
        return ", ".join(f"{'.'.join(map(str, one['loc']))}: {one['type']}" for one in error.errors())
    except (KeyError, AssertionError, BusError) as error:
        return repr(error)
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(verdict(*json.loads(line))))
