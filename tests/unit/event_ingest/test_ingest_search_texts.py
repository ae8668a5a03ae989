"""The words of a search, and where they are in a text."""

from datetime import UTC, datetime

import pytest

from event_ingest.search_texts import (
    included_tokens,
    phrases,
    search_marks,
    search_terms,
    searched_partitions,
    snippet_of,
    token_query,
)
from sandherd.contracts.errors import ContractError

NAMES = ["events_20261122", "events_20261121", "events_20261120", "events_default"]


@pytest.mark.parametrize(
    ("text", "query", "wanted"),
    [
        ("a B", "(('a')) & (('b'))", ["a", "b"]),
        ("a or b c", "(('a') | ('b')) & (('c'))", ["a", "b", "c"]),
        ("or a or", "(('or')) & (('a'))", ["or", "a"]),
        ("a -b", "(('a')) & !'b'", ["a"]),
        ('a -"b c"', "(('a'))", ["a"]),
        ('src/app.py "x y"', "(('src' & 'app' & 'py')) & (('x' & 'y'))", ["src", "app", "py", "x", "y"]),
        ("it's \\ <b>", "(('it' & 's')) & (('b'))", ["it", "s", "b"]),
    ],
)
def test_a_search_is_the_words_of_its_text(text: str, query: str, wanted: list[str]) -> None:
    """A search may have words, alternatives, exclusions and phrases. No other character has a special meaning."""
    groups = search_terms(text)
    assert token_query(groups) == query
    assert included_tokens(groups) == wanted


def test_phrases_are_left_to_the_text() -> None:
    """The index of words can't decide whether words are next to each other, also in alternatives and exclusions."""
    assert phrases(search_terms('a/b or c -"d e" f')) == [([" a b ", " c "], False), ([" d e "], True)]
    assert phrases(search_terms("a b -c")) == []


@pytest.mark.parametrize("text", ["", " ", "-a", '-"a b" -c', "...", '""'])
def test_a_search_without_a_word_is_refused(text: str) -> None:
    """A search without a word is refused, because all events would be hits."""
    with pytest.raises(ContractError, match="no word"):
        search_terms(text)


def test_marks_are_alternatives_of_each_kind() -> None:
    """A hit has one mark of each list; an empty list permits any mark. A quotation mark does not end a mark."""
    assert search_marks(["p a"], [], ["e x'y", "e \\"]) == "('p a') & ('e x''y' | 'e \\\\')"
    assert search_marks([], []) == ""


def test_partitions_are_those_of_the_interval_from_the_last_one_on() -> None:
    """The default partition is always searched, as its events may have any date. After it, no partition follows."""
    assert searched_partitions(NAMES, None, None, None) == NAMES
    assert searched_partitions(NAMES, None, None, "events_20261121") == NAMES[1:]
    assert searched_partitions(NAMES, None, None, "events_20261121x") == NAMES[1:]
    assert searched_partitions(NAMES, None, None, "events_default") == ["events_default"]
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert searched_partitions(NAMES, None, noon, None) == NAMES[1:]
    assert searched_partitions(NAMES, noon.replace(day=22), None, None) == [*NAMES[:2], NAMES[3]]
    assert searched_partitions(NAMES, noon, noon.replace(year=2025), None) == ["events_default"]


def test_a_snippet_is_around_the_first_word_with_whole_words_marked() -> None:
    """A snippet has at most 240 characters. Parts of words are not marked."""
    text = "x" * 500 + " needles Needle_one " + "y" * 500
    snippet, matches = snippet_of(text, ["needle", "one"])
    assert len(snippet) == 240
    assert [snippet[one.start : one.end] for one in matches] == ["Needle", "one"]
    assert snippet_of("none", ["needle"]) == ("none", [])
