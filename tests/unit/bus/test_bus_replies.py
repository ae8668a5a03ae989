"""Reading the replies of services."""

import json
from pathlib import Path

import pytest

import sandherd.contracts
from sandherd.bus.errors import BusError
from sandherd.bus.replies import read_reply
from sandherd.contracts.requests import REQUESTS

REPLIES = Path(sandherd.contracts.__file__).parent / "golden" / "v1" / "replies"


def test_unknown_fields_of_newer_service_are_ignored() -> None:
    """Fields of a newer service are ignored, also in the strict models within `list_runtimes`."""
    name = "spawner.list_runtimes"
    golden = json.loads((REPLIES / f"{name}.json").read_text())
    said = json.loads(json.dumps(golden))
    here = said["ok"]
    for strict in (said, here, here["caps"], here["defaults"], here["runtimes"][0], here["profiles"]["python"]):
        strict["newer"] = {"than": "we"}
    answer = REQUESTS[name].Answer
    assert read_reply(json.dumps(said).encode(), answer) == answer.model_validate(golden["ok"])


def test_reply_of_another_shape_is_refused() -> None:
    """A missing field is an error."""
    with pytest.raises(BusError, match="invalid reply"):
        read_reply(b'{"ok": {"newer": 1}}', REQUESTS["spawner.list_runtimes"].Answer)
