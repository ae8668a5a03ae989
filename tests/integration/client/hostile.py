"""Replies of a herd in which every free text is hostile."""

import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import sandherd.contracts
from sandherd.bus.errors import BusError
from sandherd.bus.replies import read_reply
from sandherd.client.events import decoder
from sandherd.contracts.requests import StoredEvent

GOLDEN = Path(sandherd.contracts.__file__).parent / "golden" / "v1"
SCREEN = "\x1b[2J\x1b]52;c;aGk=\x07\x9b31m\x7f\r"
UNSEEN = "\u202e\u2066\u2028\u200b\u061c\U000e0041\ufe00\u3164"
MARKUP = "[red]x[/red][link=http://a.example]l[/link]"
HOSTILE = SCREEN + UNSEEN + MARKUP
"""A text that clears the screen, sets the clipboard, reorders and hides text, and uses rich's markup."""


def forbidden(shown: str) -> set[str]:
    """The characters in an output that no terminal may receive."""
    return {
        f"U+{ord(one):04X}"
        for one in shown
        if (unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and one not in "\n\t") or one in UNSEEN
    }


def poisoned(document: Any, is_valid: Any) -> Any:
    """The document with every text made hostile, if it stays valid with it."""
    found = json.loads(json.dumps(document))
    for path, text in list(_texts(found)):
        for hostile in (HOSTILE + text, UNSEEN + text):
            _put(found, path, hostile)
            if is_valid(found):
                break
            _put(found, path, text)
    return found


def _texts(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, str):
        yield path, value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _texts(item, (*path, key))


def _put(document: Any, path: tuple[Any, ...], text: str) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = text


@cache
def reply(name: str, answer: Any) -> bytes:
    """The golden reply to a request, poisoned."""

    def is_valid(document: Any) -> bool:
        try:
            read_reply(json.dumps(document).encode(), answer)
        except (BusError, ValueError):
            return False
        return True

    golden = json.loads((GOLDEN / "replies" / f"{name}.json").read_text())
    golden["ok"].pop("next_cursor", None)
    golden["ok"].pop("has_more", None)
    events = "events" in golden["ok"]
    if events:
        golden["ok"]["events"] = []
    found = poisoned(golden, is_valid)
    if "secrets_key" in found["ok"]:  # with an invalid key the client would send nothing
        found["ok"]["secrets_key"] = golden["ok"]["secrets_key"]
    if events:
        found["ok"]["events"] = stored_events()
    return json.dumps(found).encode()


@cache
def stored_events() -> list[Any]:
    """Every golden event as the history returns it, poisoned."""

    def is_valid(stored: Any) -> bool:
        try:
            decoder.from_history(StoredEvent.model_validate(stored))
        except ValueError:
            return False
        return True

    files = sorted((GOLDEN / "events").glob("*.json"))
    stored = [{"stream_sequence": n, "envelope": json.loads(path.read_text())} for n, path in enumerate(files, 1)]
    return [poisoned(one, is_valid) for one in stored]


@cache
def live_event(subject: str, source: str, sequence: int, *, task: str | None = None, **data: Any) -> bytes:
    """The golden event of a subject's type, poisoned, as a message of that subject. `data` stays as it is."""
    _, _, _, project, entity, domain, action = subject.split(".")
    about = {"project": project, "subject": entity, "source": source, "sequence": sequence}
    about |= {"taskid": task} if task else {}
    about |= {"sandboxid": entity} if entity.startswith("sbx-") else {"taskid": entity}

    def is_valid(event: Any) -> bool:
        return decoder.from_live(subject, json.dumps(event).encode()) is not None

    golden = json.loads((GOLDEN / "events" / f"{domain}.{action}.json").read_text())
    golden |= about | {"data": golden["data"] | data}
    assert is_valid(golden), golden
    found = poisoned(golden, is_valid)
    found |= about | {"data": found["data"] | data}
    assert is_valid(found), found
    return json.dumps(found).encode()


PROBLEM = json.dumps(
    {"error": {"code": "refused", "message": f"it ended: {HOSTILE}", "field": HOSTILE, "remedy": HOSTILE}}
).encode()
