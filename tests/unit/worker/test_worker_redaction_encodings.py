"""Redaction of encoded secrets: written by the tools that shells have, for every encoding of the documented table."""

import base64
import random
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from sandherd_worker.redaction import MARK, Redactor
from sandherd_worker.redaction_forms import ENCODINGS, TextReading
from sandherd_worker.redaction_views import TextView, compact, hexadecimal, unescaped
from sandherd_worker.stream_redaction import StreamRedactor
from tests.unit.worker.redaction_writers import (
    BODY,
    CASES,
    PEM,
    PHRASE,
    STREAMED,
    TOKEN,
    WRITERS,
    redactor_of,
    shell,
    shown_of,
    xxd,
)


def test_every_documented_encoding_is_tested() -> None:
    """No row of the documented table goes without a test."""
    assert sorted(WRITERS) == list(range(len(ENCODINGS)))


_AROUND = 60
"""Characters that a form may have around the secret: offsets, a user's name, brackets."""


@pytest.mark.parametrize(("write", "secret"), CASES)
def test_encoded_secret_is_redacted(write: Callable[[str], str], secret: str) -> None:
    """Nearly all of the tool's output is redacted, and the text before and after it is unchanged."""
    text = write(secret)
    redactor = redactor_of(secret, "another-secret-value")
    cleaned = redactor.text(f"before: {text}\n# behind, as ever\n")
    left = "".join(cleaned.replace(MARK, "").split())
    assert MARK in cleaned
    assert left.startswith("before:")
    assert left.endswith("#behind,asever")
    allowed = _AROUND if len(text) > len(secret) + 2 else 0
    stored = len(left) - len("before:#behind,asever")
    assert stored <= allowed or _only_offsets(left), cleaned


def _only_offsets(left: str) -> bool:
    """Of a dump with many lines, an offset stays of each that nothing was found in: there must be few."""
    return left.count("0000") < 4


_WINDOW = {TextReading.TEXT: 6, TextReading.UNESCAPED: 6, TextReading.COMPACT: 9, TextReading.HEXADECIMAL: 12}
"""Consecutive characters of a form that are a leak: between three and six bytes of the secret."""


@cache
def windows(secret: str, number: int) -> set[bytes]:
    """Every part of the forms of a secret that may not be seen."""
    width = _WINDOW[ENCODINGS[number].reading]
    texts = [needle.text for needle in ENCODINGS[number].needles(secret.encode())]
    return {text[at : at + width] for text in texts for at in range(len(text) - width + 1)}


def seen_of(shown: str, number: int) -> set[bytes]:
    """Every part of a text of that length, as the encoding is read."""
    raw = shown.replace(MARK, " | ").encode("utf-8", "surrogateescape")
    reading = ENCODINGS[number].reading
    found: TextView | None = None
    if reading is TextReading.UNESCAPED:
        found = unescaped(raw)
    elif reading is not TextReading.TEXT:
        found = (compact if reading is TextReading.COMPACT else hexadecimal)(raw)
    data = raw if found is None else found.data
    return {data[at : at + _WINDOW[reading]] for at in range(len(data))}


@pytest.mark.parametrize(("number", "write", "secret"), STREAMED)
def test_encoded_secret_is_redacted_at_any_split(number: int, write: Callable[[str], str], secret: str) -> None:
    """A secret is redacted in single characters with pauses, and in random pieces with and without pauses."""
    text = f"before:\n{write(secret)}\n# behind, as ever\n"
    redactor = redactor_of(secret, "another-secret-value")
    hidden, chance = windows(secret, number), random.Random(len(text))
    for pieces in ([*text] if secret == TOKEN else [text], *(_cut(text, chance, count) for count in (40, 7, 2))):
        stream = StreamRedactor(redactor)
        shown = ""
        for piece in pieces:
            shown += stream.feed(piece)
            if len(pieces) == len(text) or chance.random() < 0.5:
                shown += stream.pause()
        shown += stream.finish()
        assert MARK in shown
        assert not seen_of(shown, number) & hidden, shown


def _cut(text: str, chance: random.Random, count: int) -> list[str]:
    edges = [0, *sorted(chance.randrange(len(text)) for _ in range(count)), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def test_the_reported_attacks_fail() -> None:
    """A token of 93 characters in `base64` and HTTP Basic, and a wrapped PEM key are redacted (issue 11, finding 8)."""
    redactor = Redactor([TOKEN, PEM])
    assert TOKEN[:60] not in _decoded(redactor.text(shell('printf "$S" | base64')(TOKEN)))
    for user in ("a", "ab", "abc"):
        assert TOKEN[3:] not in _decoded(redactor.text(base64.b64encode(f"{user}:{TOKEN}".encode()).decode()))
    assert BODY[:40] not in "".join(redactor.text(shell('printf %s "$S" | tr -d "\\n" | fold -w 50')(PEM)).split())


def _decoded(text: str) -> str:
    plain = "".join(text.replace(MARK, "").split()).rstrip("=")
    return base64.b64decode(plain + "A" * (-len(plain) % 4)).decode("latin-1")


@pytest.mark.parametrize("lines", [2, 5])
def test_part_of_a_key_is_redacted_however_wrapped(lines: int) -> None:
    """Some lines from the middle of a PEM file, in lines of another length, are found."""
    body = PEM.splitlines()
    part = "".join(body[3 : 3 + lines])
    wrapped = "\n".join(part[at : at + 50] for at in range(0, len(part), 50))
    assert shown_of(wrapped, Redactor([PEM])) == 0


@pytest.mark.parametrize("secret", ["admin", "password1", "https://example.com/api", "correct horse battery staple"])
def test_ordinary_text_does_not_match_ordinary_secrets(secret: str) -> None:
    """No encoded form of a short or wordy secret is found in source code, hashes, dumps and prose."""
    files = sorted(Path(__file__).parent.glob("*.py"))[:20]
    text = "".join(path.read_text() for path in files).replace(secret, "")
    assert Redactor([secret]).text(text) == Redactor().text(text)
    dumped = xxd(text.encode()[:20_000]) + base64.encodebytes(text.encode()[:20_000]).decode()
    assert Redactor([secret]).text(dumped) == Redactor().text(dumped)


HOSTILE = {
    "tokens that do not end": "-eyJ" * 16_000,
    "heads of keys": "-----BEGIN PRIVATE KEY-----" * 2400 + "\n",
    "beginnings": base64.b64encode(TOKEN.encode()).decode()[:31] * 2000,
    "all but the last digit": TOKEN.encode().hex()[:-1] * 340,
    "the secret, again and again": TOKEN * 700,
    "escapes": "%41" * 21_000,
    "entities": "&" * 32_000 + "&aaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 1000,
    "terminal": "\x1b[" * 32_000,
    "dumps": "\n00000000: 61 62 " * 3800,
    "a dump of one line": "00000000: " + "61 " * 21_000,
    "passwords": "://" * 10_000 + "a:" * 15_000 + "@",
    "of every secret the beginning": "".join(f"secret-number-{number:03}-wh" for number in range(50)) * 50,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_redaction_of_hostile_output_takes_linear_time(text: str) -> None:
    """Four times the text takes some four times the processor's time; a stream as well."""
    redactor = Redactor([TOKEN, PHRASE, *(f"secret-number-{number:03}-which-is-long" for number in range(50))])

    def cost(content: str) -> float:
        took = []
        for _ in range(3):
            begun = time.process_time()
            redactor.text(content)
            stream = StreamRedactor(redactor)
            for at in range(0, len(content), 16_000):
                stream.feed(content[at : at + 16_000])
            stream.finish()
            took.append(time.process_time() - begun)
        return min(took)

    small, large = cost(text[: len(text) // 4]), cost(text)
    assert large < 10 * small + 0.02
    assert large < 60e-6 * len(text)
