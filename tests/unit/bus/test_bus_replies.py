"""Reading the replies of services."""

import json
from pathlib import Path

import pytest

import sandherd.contracts
from sandherd.bus.errors import (
    BusError,
    LeaderlessError,
    PublishFailedError,
    StreamFullError,
    SubjectFullError,
    WrongLastSequenceError,
)
from sandherd.bus.replies import read_acknowledgement, read_reply
from sandherd.contracts.requests import REQUESTS

REPLIES = Path(sandherd.contracts.__file__).parent / "golden" / "v1" / "replies"


def test_unknown_fields_of_newer_service_are_ignored() -> None:
    """Fields of a newer service are ignored, also in the strict models within `list_runtimes`."""
    name = "spawner.list_runtimes"
    golden = json.loads((REPLIES / f"{name}.json").read_text())
    reply_document = json.loads(json.dumps(golden))
    here = reply_document["ok"]
    for strict in (
        reply_document,
        here,
        here["caps"],
        here["defaults"],
        here["runtimes"][0],
        here["profiles"]["python"],
    ):
        strict["newer"] = {"than": "we"}
    answer = REQUESTS[name].Answer
    assert read_reply(json.dumps(reply_document).encode(), answer) == answer.model_validate(golden["ok"])


def test_reply_of_another_shape_is_refused() -> None:
    """A missing field is an error."""
    with pytest.raises(BusError, match="invalid reply"):
        read_reply(b'{"ok": {"newer": 1}}', REQUESTS["spawner.list_runtimes"].Answer)


def test_acknowledgement_of_a_publish_is_read_by_its_code() -> None:
    """The number of a stored message, and for each reason why it was not stored the error that decides on a retry."""
    stored = read_acknowledgement("a", b'{"stream": "EVENTS", "seq": 7, "domain": "hub"}')
    assert (stored.stream, stored.seq, stored.duplicate) == ("EVENTS", 7, False)
    assert read_acknowledgement("a", b'{"stream": "EVENTS", "seq": 7, "duplicate": true}').duplicate
    for code, description, expected in (
        (10071, "wrong last sequence: 4", WrongLastSequenceError),
        (10077, "maximum messages exceeded", StreamFullError),
        (10077, "maximum messages per subject exceeded", SubjectFullError),
        (10008, "no leader", LeaderlessError),
        (None, None, PublishFailedError),
    ):
        error = {"error": {"code": 400, "err_code": code, "description": description}}
        with pytest.raises(BusError) as raised:
            read_acknowledgement("a", json.dumps(error).encode())
        assert type(raised.value) is expected
    for reply in (b"{}", b'{"stream": "EVENTS"}', b"", b"+OK", b"[]"):
        with pytest.raises(PublishFailedError, match="not an acknowledgement"):
            read_acknowledgement("a", reply)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b'{"error": null}', PublishFailedError),
        (b'{"error": {"err_code": [1]}}', PublishFailedError),
        (b'{"error": {"err_code": {}, "description": {}}}', PublishFailedError),
        (b'{"error": {"err_code": 10077, "description": 5}}', StreamFullError),
        (b'{"stream": null, "seq": null}', PublishFailedError),
        (b'{"stream": "EVENTS", "seq": "7"}', PublishFailedError),
    ],
)
def test_malformed_acknowledgement_is_a_failed_publish(reply: bytes, expected: type[BusError]) -> None:
    """Nothing but an error of the bus is raised, as any other error would end the reading of the connection."""
    with pytest.raises(expected):
        read_acknowledgement("a", reply)
