"""Redaction of secrets that are numbers, in structures whose numbers have no quotes."""

import math
from typing import Any

import pytest

from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.tools import AgentToolUse
from sandherd_worker.emitter import Emitter
from sandherd_worker.redaction import MARK, Redactor

PIN = "94821736550123"


@pytest.mark.parametrize(
    ("secret", "number"),
    [
        (PIN, 94821736550123),
        (PIN, -94821736550123),
        (PIN, 94821736550123.0),
        (PIN, 1948217365501230),
        (PIN, 94821736550123.5),
        ("0094821736", 94821736),
        ("94821736550123456789", 94821736550123456789),
        ("94821736550123456789", 9.482173655012346e19),
        ("94821736550123456789", 94821736550123460000),
        ("1234.5678", 1234.5678),
        ("12345678.50", 12345678.5),
        ("48151", 48151),
    ],
)
def test_numeric_secret_is_redacted_in_a_structure(secret: str, number: float) -> None:
    """Objects, lists and nested ones are searched; a neighbouring text is unchanged."""
    redactor = Redactor(["another", secret])
    assert redactor.value({"n": number, "t": True}) == {"n": MARK, "t": True}
    assert redactor.value([[number], {"a": {"b": number}}, 7]) == [[MARK], {"a": {"b": MARK}}, 7]


def test_other_numbers_stay() -> None:
    """Small and too large numbers, booleans, None and infinity are unchanged."""
    redactor = Redactor([PIN, "0000", "1.000", "12"])
    other = {"a": 12, "b": 0, "c": 1.0, "d": True, "e": None, "f": int("1" * 400), "g": math.inf, "h": 9482173655012}
    assert redactor.value(other) == other


@pytest.mark.parametrize(("field", "clean"), [(94821736550123, 0), (94821736550123.0, 0.0), (948, 948), (True, True)])
def test_numeric_contract_field_becomes_zero(field: Any, clean: Any) -> None:
    """The field becomes 0, and only if it equals a long secret."""
    cleaned = Redactor([PIN, "9482"]).value(field)
    assert (cleaned, type(cleaned)) == (clean, type(clean))
    assert Redactor(["9482"]).value(9482) == 9482


def test_artifact_reference_keeps_its_size() -> None:
    """The size in a reference is not redacted, because a mark would not be valid there."""
    reference = {"subject": "s", "sha256": "0", "size": 94820, "media_type": "text/plain"}
    whole = {name: reference.get(name, 9482) for name in _fields()}
    assert Redactor(["9482"]).value({"input": whole}) == {"input": whole}


def _fields() -> list[str]:
    return list(ArtifactRef.model_fields)


def test_secret_as_a_list_of_bytes_is_redacted() -> None:
    """A list of bytes with a secret is redacted: Node prints buffers in this format."""
    secret = "a-secret-of-letters"
    assert Redactor([secret]).value({"data": list(b"x" + secret.encode())}) == {"data": [MARK]}
    assert Redactor([secret]).value({"data": list(range(200))}) == {"data": list(range(200))}


async def test_event_with_a_secret_number_is_published_redacted(
    spool: Any, published_of: Any, assignment: Any, tmp_path: Any
) -> None:
    """The event retains its type and its other fields."""
    await Emitter(spool, assignment(tmp_path), Redactor([PIN])).emit(
        AgentToolUse(turn=1, tool="T", tool_use_id="c", input={"n": int(PIN), "m": [float(PIN)], "k": 5})
    )
    assert published_of(spool)[-1].data.input == {"n": MARK, "m": [MARK], "k": 5}
