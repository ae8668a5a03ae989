"""Reading what a service answers."""

import json
from pathlib import Path

import pytest

import sandherd.contracts
from sandherd.bus.errors import BusError
from sandherd.bus.replies import read_reply
from sandherd.contracts.requests import REQUESTS

REPLIES = Path(sandherd.contracts.__file__).parent / "golden" / "v1" / "replies"


def test_what_a_newer_service_says_besides_is_passed_over() -> None:
    """Also in what is strict where it is asked for: the limits of a herd, which `list_runtimes` answers with."""
    name = "spawner.list_runtimes"
    golden = json.loads((REPLIES / f"{name}.json").read_text())
    said = json.loads(json.dumps(golden))
    here = said["ok"]
    for strict in (said, here, here["caps"], here["defaults"], here["runtimes"][0], here["profiles"]["python"]):
        strict["newer"] = {"than": "we"}
    answer = REQUESTS[name].Answer
    assert read_reply(json.dumps(said).encode(), answer) == answer.model_validate(golden["ok"])


def test_an_answer_of_another_shape_is_none() -> None:
    """What is missing is not passed over."""
    with pytest.raises(BusError, match="none"):
        read_reply(b'{"ok": {"newer": 1}}', REQUESTS["spawner.list_runtimes"].Answer)
