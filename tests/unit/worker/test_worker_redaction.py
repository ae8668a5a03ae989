"""Redaction: no published text has a secret, however it is split."""

import base64
import json
import re
from collections.abc import Callable
from itertools import combinations_with_replacement, pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandherd.contracts.names import new_name, new_uuid
from sandherd_worker.redaction import MARK, Redactor
from sandherd_worker.redaction_shapes import _CANDIDATE, _TOKENS
from sandherd_worker.stream_redaction import StreamRedactor
from tests.unit.worker.redaction_writers import redactor_of

KEY = """-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ
AAAAAAAAABAAAAMwAAAAtz
-----END OPENSSH PRIVATE KEY-----"""
TOKENS = {
    "anthropic": "sk-ant-api03-" + "aB3_" * 12,
    "github": "ghp_" + "a1B2" * 9,
    "github app": "ghs_" + "a1B2" * 9,
    "github fine": "github_pat_" + "11ABCDE_" * 6,
    "aws": "AKIA" + "ABCDEFGH12345678",
    "daytona": "dtn_" + "0a1b2c3d" * 8,
    "slack": "xoxb-1234567890-abcdef",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r",
    "nats seed": "SUAHQ6DYPB4HQ6DYPB4HQ6DYPB4HQ6DYPB4HQ6DYPB4HQ6DYPB4HQ6BI4I",
    "private key": KEY,
    "private key in a url": quote(KEY, safe=""),
    "private key in a form": quote_plus(KEY),
}


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_common_tokens_are_known_by_their_form(token: str) -> None:
    """They need not be configured: they are replaced everywhere, and the surrounding text stays."""
    assert Redactor().text(f"before {token} after") == f"before {MARK} after"


BEFORE = (
    "", "a\n", "KEY=", '"', "'", "`", " ", "key:", "(", "/", "_", "-", "\\n", "\\t", "\\u0022", "%3D", "\x1b[31m",
    "\x1b[m",
)  # fmt: skip


@pytest.mark.parametrize(("begin", "rest"), _TOKENS)
def test_search_for_tokens_misses_none(begin: str, rest: str) -> None:
    """The quick search beforehand matches in every token, of each kind and length."""

    @settings(max_examples=25, deadline=None)
    @given(st.from_regex(re.compile(begin + rest, re.ASCII), fullmatch=True))
    def matches(token: str) -> None:
        assert _CANDIDATE.search(f" {token} ")

    matches()


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_token_is_found_wherever_one_may_begin(token: str) -> None:
    """A token may begin a line, follow a sign, or an escape that ends in a letter or digit."""
    redactor = Redactor()
    assert [redactor.text(f"{before}{token}") for before in BEFORE] == [f"{before}{MARK}" for before in BEFORE]


@given(
    word=st.one_of(
        st.builds(lambda: new_name("task")),
        st.builds(lambda: new_name("sbx")),
        st.builds(lambda: str(new_uuid())),
        st.uuids().map(str),
        st.lists(
            st.sampled_from(["risk", "disk", "desk", "ask", "mask", "task", "assessment", "encryption", "of", "notes"]),
            min_size=1,
            max_size=8,
        ).map("-".join),
    ),
    before=st.sampled_from(["", "see ", "/", "=", '"', "\n", "\\n"]),
)
def test_names_and_hyphenated_text_are_no_tokens(word: str, before: str) -> None:
    """Text that only ends like a token's prefix (`task-…`, `risk-…`) is unchanged, whole or in pieces."""
    text = f"{before}{word}.md"
    assert Redactor().text(text) == text
    stream = StreamRedactor(Redactor())
    assert stream.feed(text) + stream.pause() == text


def test_password_in_a_url_is_redacted() -> None:
    """The rest of the URL is unchanged."""
    assert Redactor().text("https://x-access:abc123@host/repo") == f"https://{MARK}@host/repo"


@pytest.mark.parametrize(
    ("secret", "text", "clean"),
    [
        ("u:p@host.example", "https://u:p@host.example/x", "https://[redacted]/x"),
        ("scheme:", "a scheme://user:hush@host", "a [redacted]//[redacted]@host"),
        ("tail://", "tail://user:hush@host", "[redacted][redacted]@host"),
        ("tail://", "tail://host", "[redacted]host"),
    ],
)
def test_secret_that_overlaps_a_urls_password_is_redacted(secret: str, text: str, clean: str) -> None:
    """If a secret begins within the password, or the password within a secret, both are replaced completely."""
    assert Redactor([secret]).text(text) == clean


def test_known_secret_is_redacted_in_every_form() -> None:
    """A secret is redacted as plain text, in JSON, in a URL and in base64."""
    secret = 'p@ss "w0rd"/with stuff'
    forms = [
        secret,
        json.dumps(secret),
        "p%40ss%20%22w0rd%22%2Fwith%20stuff",
        base64.b64encode(secret.encode()).decode(),
    ]
    for form in forms:
        cleaned = Redactor([secret]).text(f"x {form} y")
        assert "w0rd" not in cleaned
        assert MARK in cleaned


def as_javascript(text: str) -> str:
    """A string as `JSON.stringify` writes it: by the letter of ECMA-262, and not by what is tested."""
    short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    return "".join(short.get(one) or (f"\\u{ord(one):04x}" if one < " " else one) for one in text)


def as_go(text: str) -> str:
    """The same as Go writes it, which escapes what could end a script, too."""
    for one in "<>&\u2028\u2029":
        text = text.replace(one, f"\\u{ord(one):04x}")
    return text


def as_java(text: str) -> str:
    """In ASCII alone, with capitals in what is escaped."""
    words = text.encode("utf-16-be")
    units = [words[at : at + 2] for at in range(0, len(words), 2)]
    return "".join(
        as_javascript(chr(u)) if 32 <= (u := int.from_bytes(unit, "big")) < 127 else _java(u) for unit in units
    )


def _java(unit: int) -> str:
    return as_javascript(chr(unit)) if chr(unit) in "\b\t\n\f\r" else f"\\u{unit:04X}"


WRITERS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JavaScript": as_javascript,
    "Go": lambda text: as_go(as_javascript(text)),
    "Python": lambda text: json.dumps(text)[1:-1],
    "Java": as_java,
    "JSON in JSON": lambda text: as_javascript(as_javascript(text)),
    "Python in JavaScript": lambda text: as_javascript(json.dumps(text)[1:-1]),
    "URL": lambda text: quote(text, safe=""),
}


@given(
    secret=st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="[]") | st.sampled_from('"\\é<&\n'), min_size=4
    ),
    writer=st.sampled_from(sorted(WRITERS)),
)
@example(secret='pä"ss\\wörd', writer="JavaScript")
def test_secret_is_found_in_every_encoding(secret: str, writer: str) -> None:
    """A secret is found in a transcript of JavaScript, a log of Go and JSON within JSON."""
    redactor = Redactor([secret])
    assert redactor.text(f"[{WRITERS[writer](secret)}]") == f"[{MARK}]"


def test_line_of_a_secret_is_found_in_every_encoding() -> None:
    """Each long line of a secret with several lines counts by itself."""
    lines = ['the "first" of the lines, é', 'the "second" of the lines, é']
    for writer in (as_javascript, WRITERS["Python"]):
        assert Redactor(["\n".join(lines)]).text(f"[{writer(lines[1])}]") == f"[{MARK}]"


def test_nested_values_are_redacted() -> None:
    """Keys, lists and nested objects are redacted; numbers and null stay."""
    given_value = {"a": ["x hunter22", {"hunter22": 1}], "n": None, "t": True}
    assert Redactor(["hunter22"]).value(given_value) == {"a": [f"x {MARK}", {MARK: 1}], "n": None, "t": True}


def test_ordinary_text_is_unchanged() -> None:
    """Hashes, ids, paths and code are not redacted."""
    text = "commit 3f786850e387550fdab836ed7e6dc881de23001b\n/usr/lib/python3 sk-short task-01jz a@b.c http://h:80/p\n"
    assert Redactor(["hunter22"]).text(text) == text


def test_too_short_secret_is_not_redacted() -> None:
    """Replacing every `ab` would destroy the text and hide nothing."""
    assert Redactor(["ab"]).text("abacus") == "abacus"


@given(
    before=st.text(alphabet="abc \n", max_size=20),
    after=st.text(alphabet="abc \n", max_size=20),
    secret=st.sampled_from([*TOKENS.values(), "correct horse battery staple", "two\nlines of a secret value here"]),
    cuts=st.lists(st.integers(min_value=0, max_value=300), max_size=6),
)
def test_secret_in_pieces_is_never_shown(before: str, after: str, secret: str, cuts: list[int]) -> None:
    """However the stream is split, the output is the redaction of the whole."""
    text = f"{before} {secret} {after}"
    stream = StreamRedactor(redactor_of("correct horse battery staple", "two\nlines of a secret value here"))
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = "".join(stream.feed(text[start:end]) for start, end in pairwise(edges)) + stream.finish()
    assert shown == f"{before} {MARK} {after}"


@pytest.mark.parametrize("after", ["", " ", "\n", "X", " x"])
@pytest.mark.parametrize("secret", ["correct horse battery staple", "two\nlines of a secret value here"])
def test_secret_with_blanks_is_redacted_at_any_split(secret: str, after: str) -> None:
    """A split at any two places, and any text behind the secret, reveals no part of it."""
    redactor, text = Redactor([secret]), f"a {secret}{after}"
    for edges in combinations_with_replacement(range(len(text) + 1), 2):
        stream, places = StreamRedactor(redactor), (0, *edges, len(text))
        shown = "".join(stream.feed(text[start:end]) for start, end in pairwise(places)) + stream.finish()
        assert shown == f"a {MARK}{after}", edges


def test_secret_in_endless_text_is_redacted() -> None:
    """The text held back never begins in the middle of a secret."""
    redactor = Redactor(["hunter22"])
    for behind in range(4080, 4100):
        stream = StreamRedactor(redactor)
        shown = stream.feed("x" * 20_000 + "hunter22" + "x" * behind) + stream.finish()
        assert shown == "x" * 20_000 + MARK + "x" * behind


def test_pause_shows_pending_text_but_no_partial_secret() -> None:
    """A prompt without a line end is shown after a moment; the beginning of a secret is not."""
    stream = StreamRedactor(Redactor(["correct horse battery staple"]))
    assert stream.feed("Continue?") == ""
    assert stream.pause() == "Continue?"
    assert stream.feed(" correct horse") == " "
    assert stream.pause() == ""
    assert stream.feed(" battery staple\n") == f"{MARK}\n"
    assert stream.feed("ghp_" + "a1B2" * 5) == ""
    assert stream.pause() == ""
    assert stream.feed("a1B2" * 4 + "\n") == f"{MARK}\n"


def test_endless_text_is_held_back_within_a_bound() -> None:
    """Output without any blank is passed on in full, and a part of limited size is held back."""
    stream = StreamRedactor(Redactor())
    shown = "".join(stream.feed("x" * 10_000) for _ in range(20))
    assert len(shown) > 180_000
    assert len(shown) + len(stream.finish()) == 200_000


@pytest.mark.parametrize(
    ("write", "size"),
    [(str, 4000), (str, 8192), (str, 16_000), (lambda text: quote(text, safe=""), 16_000)],
    ids=["4000", "8192", "16000", "%-encoding"],
)
def test_very_long_secret_of_signs_is_held_back_whole(size: int, write: Callable[[str], str]) -> None:
    """No encoding finds parts of it: its beginning waits for the rest, however long."""
    secret = "".join("!?#$~^&*(){};:,.<>"[(7 * n * n + n) % 18] for n in range(20_000))
    stream, text = StreamRedactor(redactor_of(secret)), f"a {write(secret)} b"
    shown = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.finish()
    assert shown == f"a {MARK} b"


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("pässwört", "p\\xe4ssw\\xf6rt"),
        ("pässwört€", "p%E4ssw%F6rt%u20AC"),
        ("pässwört", "p\\344ssw\\366rt"),
        ("it's 'it", "it'\\''s '\\''it"),
        ("it''s it", "it'\"''\"'s it"),
        ("it's 'it", "it'\"'\"'s '\"'\"'it"),
        ("abc0def1", "\\141bc\\60def\\61"),
        ("abc0def1", "abc\x1b(B0\x1b7def\x1b]8;id=1;file:///a\x071"),
        ("abc0def1", "a\x1b[38;2;1;2;3mbc0d\x1b[?25lef1"),
    ],
)
def test_short_secret_is_found_between_escapes(secret: str, text: str) -> None:
    """Escapes of Python, JavaScript, shells and terminals within the secret are recognised."""
    assert Redactor([secret]).text(f"<{text}>") == f"<{MARK}>"
