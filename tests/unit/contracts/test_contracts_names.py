"""Names can't lead to subjects or paths of other projects, and identifiers are valid."""

import re
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sandherd.contracts.names import (
    DerivedIds,
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
    """An independent implementation of the rule."""
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
def test_name_is_accepted_if_and_only_if_safe(name: str) -> None:
    """The function and the field type both follow the one rule, for any text."""
    assert accepted(name) == accepted_in_a_field(name) == safe(name)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_refused(name: str) -> None:
    """Wildcards, separators, line ends, look-alike digits and long names are refused, with the field's name."""
    with pytest.raises(UnsafeNameError) as caught:
        safe_name(name, "project")
    assert caught.value.field == "project"
    assert not accepted_in_a_field(name)


@pytest.mark.parametrize("name", [None, 7, b"abc", ["abc"]])
def test_value_other_than_string_is_no_name(name: object) -> None:
    """A value that is no string is refused like an invalid string."""
    with pytest.raises(UnsafeNameError):
        safe_name(name)  # type: ignore[arg-type]  # the fault under test


@given(st.from_regex(r"[a-z][a-z-]{0,30}", fullmatch=True))
def test_new_name_is_safe_and_new(prefix: str) -> None:
    """A new name begins with its prefix, is safe, and is not made twice."""
    first, second = new_name(prefix), new_name(prefix)
    assert re.fullmatch(f"{prefix}-[0-9a-hjkmnp-tv-z]{{26}}", first)
    assert safe_name(first) != second


@pytest.mark.parametrize("prefix", ["", "*", "a.b", "A", "a" * 40])
def test_new_name_with_a_bad_prefix_is_refused(prefix: str) -> None:
    """A prefix that would make the name unsafe is refused."""
    with pytest.raises(UnsafeNameError):
        new_name(prefix)


def test_new_names_and_uuids_sort_by_time() -> None:
    """A later name or UUID sorts after an earlier one."""
    assert (names := [new_name("task") for _ in range(500)]) == sorted(names)
    assert (uuids := [new_uuid() for _ in range(500)]) == sorted(uuids)


@given(MOMENTS, st.lists(st.text(alphabet=st.characters(codec="utf-8")) | st.integers()))
def test_derived_uuid_is_a_version_7(at: datetime, facts: list[object]) -> None:
    """The version and variant are those of RFC 9562, with the milliseconds in front."""
    for made in (derived_uuid(at, *facts), DerivedIds(b"key").derive(at, *facts), new_uuid_at(at)):
        assert (made.version, made.variant) == (7, RFC_4122)
        assert made.int >> 80 == (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@given(MOMENTS, st.lists(st.integers(), min_size=1))
def test_same_facts_derive_the_same_uuid(at: datetime, facts: list[int]) -> None:
    """The derivation is deterministic; and another fact derives another one."""
    assert derived_uuid(at, *facts) == derived_uuid(at, *facts)
    assert derived_uuid(at, *facts) != derived_uuid(at, *facts, "more")


@given(MOMENTS, st.timedeltas(timedelta(milliseconds=1), timedelta(days=365)), st.integers(), st.integers())
def test_derived_uuids_sort_by_time(at: datetime, later: timedelta, one: int, other: int) -> None:
    """A millisecond later sorts later, whatever the facts."""
    assert derived_uuid(at, one) < derived_uuid(at + later, other)


def test_derived_uuid_needs_a_time_zone() -> None:
    """A time without a time zone is an error."""
    with pytest.raises(TypeError):
        derived_uuid(datetime(2026, 1, 1), "fact")  # noqa: DTZ001  # on purpose


@given(MOMENTS, st.lists(st.text(alphabet=st.characters(codec="utf-8")) | st.integers()))
def test_keyed_id_needs_its_key(at: datetime, facts: list[object]) -> None:
    """Equal keys derive equal ids; another key, no key, or the facts alone derive another."""
    ids = DerivedIds(b"key")
    assert ids.derive(at, *facts) == DerivedIds(b"key").derive(at, *facts)
    others = {DerivedIds(b"").derive(at, *facts), DerivedIds(b"keys").derive(at, *facts), derived_uuid(at, *facts)}
    assert ids.derive(at, *facts) not in others
    assert new_uuid_at(at) != new_uuid_at(at)


@given(MOMENTS, st.lists(st.text(alphabet='a\0",[] '), max_size=4), st.lists(st.text(alphabet='a\0",[] '), max_size=4))
def test_different_facts_have_different_ids(at: datetime, some: list[str], others: list[str]) -> None:
    """A fact of any content can't make one list look like another."""
    ids = DerivedIds(b"key")
    assert (ids.derive(at, *some) == ids.derive(at, *others)) == (some == others)
