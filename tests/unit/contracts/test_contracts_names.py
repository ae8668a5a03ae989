"""Names can't open somebody else's tree, and identifiers are what they say."""

import re
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sandherd.contracts.derived_ids import DerivedIds
from sandherd.contracts.names import (
    SafeName,
    UnsafeNameError,
    derived_uuid,
    new_name,
    new_uuid,
    new_uuid_at,
    safe_name,
)

NAMES = TypeAdapter(SafeName)
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2199, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001  # on purpose
HOSTILE = ["", "*", ">", "a.b", "a\n", "\na", "-a", "A", "é", "a٠", "a" * 64, "a b", "a*", "_inbox", "$sys", "a\0"]


def safe(name: str) -> bool:
    """The rule once more, in other words."""
    return 1 <= len(name) <= 63 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and name[0] != "-"


def accepted(name: str) -> bool:
    try:
        return safe_name(name) == name
    except UnsafeNameError:
        return False


def accepted_in_a_field(name: str) -> bool:
    try:
        return NAMES.validate_python(name) == name
    except ValidationError:
        return False


@given(st.text() | st.from_regex(r"[a-z0-9.*>\n-]{0,70}"))
@example("a" * 63)
def test_a_name_is_taken_if_and_only_if_it_is_safe(name: str) -> None:
    """The function and the field type both follow the one rule, for any text there is."""
    assert accepted(name) == accepted_in_a_field(name) == safe(name)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused(name: str) -> None:
    """Wildcards, separators, line ends, look-alike digits and long names are refused, with the field's name."""
    with pytest.raises(UnsafeNameError) as caught:
        safe_name(name, "project")
    assert caught.value.field == "project"
    assert not accepted_in_a_field(name)


@pytest.mark.parametrize("name", [None, 7, b"abc", ["abc"]])
def test_what_is_no_text_is_no_name(name: object) -> None:
    """Something that is no string is refused like a bad string."""
    with pytest.raises(UnsafeNameError):
        safe_name(name)  # type: ignore[arg-type]  # the fault under test


@given(st.from_regex(r"[a-z][a-z-]{0,30}", fullmatch=True))
def test_a_new_name_is_safe_and_new(prefix: str) -> None:
    """A new name begins with its prefix, is safe, and is not made twice."""
    first, second = new_name(prefix), new_name(prefix)
    assert re.fullmatch(f"{prefix}-[0-9a-hjkmnp-tv-z]{{26}}", first)
    assert safe_name(first) != second


@pytest.mark.parametrize("prefix", ["", "*", "a.b", "A", "a" * 40])
def test_a_new_name_with_a_bad_prefix_is_refused(prefix: str) -> None:
    """A prefix that would make the name unsafe is refused."""
    with pytest.raises(UnsafeNameError):
        new_name(prefix)


def test_new_names_and_uuids_are_in_order_of_time() -> None:
    """What is made later sorts later."""
    assert (names := [new_name("task") for _ in range(500)]) == sorted(names)
    assert (uuids := [new_uuid() for _ in range(500)]) == sorted(uuids)


@given(MOMENTS, st.lists(st.text(alphabet=st.characters(codec="utf-8")) | st.integers()))
def test_a_derived_uuid_is_a_version_7(at: datetime, facts: list[object]) -> None:
    """It has the version and variant of RFC 9562, and the moment's milliseconds in front."""
    for made in (derived_uuid(at, *facts), DerivedIds(b"key").derive(at, *facts), new_uuid_at(at)):
        assert (made.version, made.variant) == (7, RFC_4122)
        assert made.int >> 80 == (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@given(MOMENTS, st.lists(st.integers(), min_size=1))
def test_the_same_facts_make_the_same_uuid(at: datetime, facts: list[int]) -> None:
    """Deterministic; and another fact makes another one."""
    assert derived_uuid(at, *facts) == derived_uuid(at, *facts)
    assert derived_uuid(at, *facts) != derived_uuid(at, *facts, "more")


@given(MOMENTS, st.timedeltas(timedelta(milliseconds=1), timedelta(days=365)), st.integers(), st.integers())
def test_derived_uuids_are_in_order_of_time(at: datetime, later: timedelta, one: int, other: int) -> None:
    """A millisecond later sorts later, whatever the facts."""
    assert derived_uuid(at, one) < derived_uuid(at + later, other)


def test_a_derived_uuid_wants_to_know_the_zone() -> None:
    """A naive moment is an error, not a guess."""
    with pytest.raises(TypeError):
        derived_uuid(datetime(2026, 1, 1), "fact")  # noqa: DTZ001  # on purpose


@given(MOMENTS, st.lists(st.text(alphabet=st.characters(codec="utf-8")) | st.integers()))
def test_an_id_that_is_derived_with_a_key_needs_the_key(at: datetime, facts: list[object]) -> None:
    """Whoever has the key derives it again; another key, no key, or the facts alone give another id."""
    ids = DerivedIds(b"key")
    assert ids.derive(at, *facts) == DerivedIds(b"key").derive(at, *facts)
    others = {DerivedIds(b"").derive(at, *facts), DerivedIds(b"keys").derive(at, *facts), derived_uuid(at, *facts)}
    assert ids.derive(at, *facts) not in others
    assert new_uuid_at(at) != new_uuid_at(at)


@given(MOMENTS, st.lists(st.text(alphabet='a\0",[] '), max_size=4), st.lists(st.text(alphabet='a\0",[] '), max_size=4))
def test_no_two_lists_of_facts_are_one_id(at: datetime, some: list[str], others: list[str]) -> None:
    """Whatever stands in them: who chooses one fact can't make it look like two."""
    ids = DerivedIds(b"key")
    assert (ids.derive(at, *some) == ids.derive(at, *others)) == (some == others)
