"""Redaction: a secret is in nothing that is said, however it is cut into pieces."""

import base64
import json
from collections.abc import Callable
from itertools import combinations_with_replacement, pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandherd.contracts.names import new_name, new_uuid
from sandherd_worker.redaction import MARK, Redactor
from sandherd_worker.stream_redaction import StreamRedactor

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
def test_common_tokens_are_known_by_their_shape(token: str) -> None:
    """Nobody has to name them: they are replaced wherever they stand, and the text around them stays."""
    assert Redactor().text(f"before {token} after") == f"before {MARK} after"


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
@pytest.mark.parametrize(
    "before",
    [
        "",
        "a\n",
        "KEY=",
        '"',
        "'",
        "`",
        " ",
        "key:",
        "(",
        "/",
        "_",
        "-",
        "\\n",
        "\\t",
        "\\u0022",
        "%3D",
        "\x1b[31m",
        "\x1b[m",
    ],
)
def test_a_token_is_known_wherever_one_may_begin(token: str, before: str) -> None:
    """At the start of a line, after a sign, and after an escape that ends in a letter or digit."""
    assert Redactor().text(f"{before}{token}") == f"{before}{MARK}"


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
def test_names_and_dashed_words_are_no_tokens(word: str, before: str) -> None:
    """A word that only ends like the beginning of a token (`task-…`, `risk-…`) is left alone, whole or in pieces."""
    text = f"{before}{word}.md"
    assert Redactor().text(text) == text
    stream = StreamRedactor(Redactor())
    assert stream.feed(text) + stream.pause() == text


def test_a_password_in_a_url_is_replaced_and_the_url_stays() -> None:
    """A token in a remote's address does not get out with the address."""
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
def test_a_secret_that_meets_a_urls_password_hides_neither(secret: str, text: str, clean: str) -> None:
    """Where one begins in the other, all of both is replaced."""
    assert Redactor([secret]).text(text) == clean


def test_a_known_secret_is_replaced_in_every_form() -> None:
    """As it is, in JSON, in a URL and in base 64."""
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
def test_a_secret_is_found_whoever_wrote_it_down(secret: str, writer: str) -> None:
    """In a transcript of JavaScript, a log of Go, JSON within JSON: quotes, signs and letters of all kinds."""
    redactor = Redactor([secret])
    assert redactor.text(f"[{WRITERS[writer](secret)}]") == f"[{MARK}]"


def test_a_line_of_a_secret_is_found_whoever_wrote_it_down() -> None:
    """Of a secret with several lines each long one counts by itself."""
    lines = ['the "first" of the lines, é', 'the "second" of the lines, é']
    for writer in (as_javascript, WRITERS["Python"]):
        assert Redactor(["\n".join(lines)]).text(f"[{writer(lines[1])}]") == f"[{MARK}]"


def test_values_are_cleaned_all_the_way_down() -> None:
    """Keys, lists and nested objects too; numbers and nothing stay."""
    given_value = {"a": ["x hunter22", {"hunter22": 1}], "n": None, "t": True}
    assert Redactor(["hunter22"]).value(given_value) == {"a": [f"x {MARK}", {MARK: 1}], "n": None, "t": True}


def test_ordinary_text_is_left_alone() -> None:
    """Hashes, ids, paths and code are no secrets."""
    text = "commit 3f786850e387550fdab836ed7e6dc881de23001b\n/usr/lib/python3 sk-short task-01jz a@b.c http://h:80/p\n"
    assert Redactor(["hunter22"]).text(text) == text


def test_a_secret_too_short_to_be_one_does_not_blot_out_everything() -> None:
    """Replacing every `ab` would destroy what is said and hide nothing."""
    assert Redactor(["ab"]).text("abacus") == "abacus"


@given(
    before=st.text(alphabet="abc \n", max_size=20),
    after=st.text(alphabet="abc \n", max_size=20),
    secret=st.sampled_from([*TOKENS.values(), "correct horse battery staple", "two\nlines of a secret value here"]),
    cuts=st.lists(st.integers(min_value=0, max_value=300), max_size=6),
)
def test_a_secret_that_comes_in_pieces_is_never_shown(before: str, after: str, secret: str, cuts: list[int]) -> None:
    """However the stream is cut, what comes out is what redaction of the whole would give."""
    text = f"{before} {secret} {after}"
    stream = StreamRedactor(Redactor(["correct horse battery staple", "two\nlines of a secret value here"]))
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = "".join(stream.feed(text[start:end]) for start, end in pairwise(edges)) + stream.finish()
    assert shown == f"{before} {MARK} {after}"


@pytest.mark.parametrize("after", ["", " ", "\n", "X", " x"])
@pytest.mark.parametrize("secret", ["correct horse battery staple", "two\nlines of a secret value here"])
def test_a_secret_of_several_words_is_cut_nowhere(secret: str, after: str) -> None:
    """At no two places, the end of the secret among them, and whatever stands behind it."""
    redactor, text = Redactor([secret]), f"a {secret}{after}"
    for edges in combinations_with_replacement(range(len(text) + 1), 2):
        stream, places = StreamRedactor(redactor), (0, *edges, len(text))
        shown = "".join(stream.feed(text[start:end]) for start, end in pairwise(places)) + stream.finish()
        assert shown == f"a {MARK}{after}", edges


@pytest.mark.parametrize("behind", range(4080, 4100))
def test_a_secret_in_an_endless_word_is_cut_nowhere(behind: int) -> None:
    """What is held back of it begins where it may, not in the middle of a secret."""
    stream = StreamRedactor(Redactor(["hunter22"]))
    shown = stream.feed("x" * 20_000 + "hunter22" + "x" * behind) + stream.finish()
    assert shown == "x" * 20_000 + MARK + "x" * behind


def test_a_pause_shows_an_unfinished_word_but_no_unfinished_secret() -> None:
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


def test_an_endless_word_does_not_fill_the_memory() -> None:
    """Output without any blank is passed on, all of it, with a bounded part held back."""
    stream = StreamRedactor(Redactor())
    shown = "".join(stream.feed("x" * 10_000) for _ in range(20))
    assert len(shown) > 180_000
    assert len(shown) + len(stream.finish()) == 200_000
