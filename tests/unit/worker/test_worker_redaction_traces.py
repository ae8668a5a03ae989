"""The cheap condition before the search for secrets: it never rules out a text in which the search finds one."""

import base64
import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from hypothesis import example, given
from hypothesis import strategies as st

from sandherd_worker.redaction import Redactor
from sandherd_worker.redaction_forms import TextReading, needles
from sandherd_worker.redaction_traces import decodes, digits, letters
from sandherd_worker.redaction_views import unescaped
from tests.unit.worker.redaction_writers import PEM, TOKEN, redactor_of, xxd

FRAGMENTS = (
    "\\", "\\\\", "\n", "\r\n", "\\n", "\\t", "\\e", "\\a", "\\b", "\\r", "\\u0041", "\\x41", "\\U00000041", "\\u{41}",
    "\\101", "%", "%41", "%u0041", "25", "4", "1", "0", "000", "&", "#", "65;", "&#65;", "&amp;", "amp;", "&am", "p;",
    ";", "&nGt;", "'", "'\\''", "'\"'\"'", '"', "\x1b", "\x1b[31m", "[0m", "]8;", "\x07", "u", "x", "e", "n", "cd", "Z",
    "_", " ", "é", "00000010: ",
)  # fmt: skip
"""What escapes are made of: side by side they make, join and remove others."""
NOISE = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@given(text=st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=30).map("".join))
@example("ad\\\\\\nmin").via("the second decoding removes what the first has found")
@example("&amp\\;#65;").via("the first decoding completes an entity")
@example("%\\\n41").via("a line end within an escape")
def test_decoding_a_text_without_such_escapes_leaves_its_traces(text: str) -> None:
    """Twice: letters and digits are the same, and those side by side were so in the text."""
    raw = layer = text.encode()
    if decodes(raw):
        return
    for _ in range(2):
        view = unescaped(layer)
        layer = layer if view is None else view.data
        assert letters(layer) == letters(raw)
        assert digits(layer) == digits(raw)
        assert all(run in raw for run in re.findall(rb"[A-Za-z0-9]+", layer))


WRITERS: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    repr,
    shlex.quote,
    quote,
    html.escape,
    lambda text: base64.b64encode(b"x" + text.encode()).decode(),
    lambda text: xxd(b"ab" + text.encode()),
    lambda text: "'\"'\"'".join(text.split("'")),
    lambda text: text.replace(" ", "\\ "),
    "\\".join,
)
SECRETS = st.one_of(
    st.text("abcXYZ019-_/+ '\"\\&%\n", min_size=4, max_size=24),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=12),
    st.text("enratbfv", min_size=4, max_size=20),
    st.sampled_from(["correct horse battery staple", "aaaaaaaa", "!?#$~^&*(", "ssl0000000000", TOKEN]),
)


@st.composite
def written(draw: st.DrawFn) -> tuple[str, str]:
    """A secret, and a text with a form of it: one searched for or one of a tool, twice over, and wrapped."""
    secret = draw(SECRETS)
    known: list[bytes] = [needle.text for reading in TextReading for needle in needles([secret], reading)]
    if known and draw(st.sampled_from([True, False])):
        form = draw(st.sampled_from(known)).decode("utf-8", "replace")
    else:
        form = draw(st.sampled_from(WRITERS))(draw(st.sampled_from(WRITERS))(secret))
    between = draw(
        st.sampled_from(["", "\n", " ", "\\n", "\r\n    ", "\n+", '",\n  "', ", ", ":", "\\\\n", "'\\''", "\\"])
    )
    width = draw(st.integers(min_value=1, max_value=40))
    wrapped = between.join(form[at : at + width] for at in range(0, len(form), width))
    return secret, draw(NOISE) + wrapped + draw(NOISE)


@given(case=written())
@example(("admin", "ad\\\\\\nmin")).via("three signs, of which the second decoding removes the last one")
@example(("secret", "secr\\net")).via("a letter of an escape within the secret")
@example(("abcdefgh", "x" * 9)).via("a text without it")
def test_text_with_a_secret_is_always_searched(case: tuple[str, str]) -> None:
    """A text that contains a secret is searched, for every encoding, line wrap and surrounding text."""
    secret, text = case
    redactor = Redactor([secret])
    if redactor._find_in_bytes(text.encode("utf-8", "surrogatepass")):
        assert redactor._traces.fit_in(text)
        assert redactor._traces.may_be_in(text.encode("utf-8", "surrogatepass"))


def test_ordinary_text_is_not_searched() -> None:
    """Few event-sized parts of source code are searched."""
    redactor = redactor_of(TOKEN, PEM, "correct horse battery staple", "hunter22", "a-secret-value-of-the-task")
    text = "".join(path.read_text() for path in sorted(Path("services/worker/sandherd_worker").glob("*.py")))
    parts = [text[at : at + 2000].encode() for at in range(0, len(text), 2000)]
    searched = [part for part in parts if redactor._traces.may_be_in(part) and not decodes(part)]
    assert len(searched) < len(parts) / 10
