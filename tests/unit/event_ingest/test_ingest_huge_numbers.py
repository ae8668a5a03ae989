"""Numbers that are too large for a double are found; ids and ordinary events have none."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_ingest.huge_numbers import may_have_huge_number
from tests.unit.contracts.hostile import EVENT_DOCUMENTS

DIGITS = st.text("0123456789", min_size=1, max_size=400)


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """A JSON number, often with many digits or a large exponent."""
    whole = draw(st.one_of(st.just("0"), DIGITS.map(lambda digits: "1" + digits)))
    fraction = draw(st.one_of(st.just(""), DIGITS.map(lambda digits: "." + digits)))
    exponent = draw(st.one_of(st.just(""), st.integers(0, 100_000).map(str)))
    mark = draw(st.sampled_from(["e", "E", "e+", "E+", "e-", "e00", "E+0"]))
    return draw(st.sampled_from(["", "-"])) + whole + fraction + (mark + exponent if exponent else "")


@given(numbers(), st.text(), st.sampled_from(["", " ", "\n", "\t "]), st.booleans())
def test_number_that_becomes_infinite_is_found(number: str, text: str, space: str, in_list: bool) -> None:
    """Wherever it is in a document, and however it is written."""
    nested = f"[0,{space}{number}]" if in_list else f"{space}{number}"
    document = f'{{"text":{json.dumps(text)},"x":{nested}{space}}}'
    if math.isinf(float(number)):
        assert may_have_huge_number(document.encode())


@pytest.mark.parametrize("before", range(0, 150, 7))
@pytest.mark.parametrize(
    ("digits", "exponent"), [(309, ""), (309, ".5"), (300, "e9"), (250, "e60"), (210, "e99"), (1, "e309")]
)
def test_number_is_found_at_each_position(digits: int, exponent: str, before: int) -> None:
    """Many digits, a large exponent, or both together."""
    number = f"9{'9' * (digits - 1)}{exponent}"
    assert math.isinf(float(number))
    assert may_have_huge_number(f'{{"text":"{"x" * before}","x":{number}}}'.encode())


@pytest.mark.parametrize("text", ["4e1234", "01a22d11-773e-724e-8766-feb235bc9e5550", "a1e999", "\\u0031e999", "0.12s"])
def test_id_is_no_number(text: str) -> None:
    """Hexadecimal ids and traceparents have digits, an e and further digits, too."""
    assert not may_have_huge_number(json.dumps({"id": text, "n": [1.5e10, 1e15, 123456789012]}).encode())


@pytest.mark.parametrize("document", EVENT_DOCUMENTS, ids=lambda document: document["type"])
def test_example_has_none(document: dict[str, object]) -> None:
    """No golden example takes the slow path."""
    assert not may_have_huge_number(json.dumps(document).encode())
