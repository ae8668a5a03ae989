"""Stored replies of forges: as they were, and bounded in all."""

from spawner.forges.reply_cache import ReplyCache


def test_reply_is_stored_as_it_was() -> None:
    """The last reply of a URL is stored."""
    cache = ReplyCache()
    cache["a"] = ("old", None, {}, None)
    cache["a"] = ('W/"x"', None, [{"number": 1, "title": "Σ\ud800", "none": None}], "https://forge/2")
    assert cache["a"] == ('W/"x"', None, [{"number": 1, "title": "Σ\ud800", "none": None}], "https://forge/2")
    assert list(cache) == ["a"]


def test_reply_that_was_used_last_remains() -> None:
    """Other replies are deleted to make space. A reply that alone is too large is not stored."""
    cache = ReplyCache(max_bytes=200)
    cache["a"] = cache["b"] = ("tag", None, "x", None)
    for number in range(100):
        cache[str(number)] = ("tag", None, "x", None)
        assert cache["a"] == ("tag", None, "x", None)
    assert "b" not in cache
    assert 2 <= len(cache) < 20
    cache["large"] = ("tag", None, [str(number) for number in range(1000)], None)
    assert len(cache) == 0
    cache["a"] = ("a", None, "x", None)
    del cache["a"]
    assert len(cache) == 0
    assert cache._bytes == 0
