"""Redaction of encoded secrets: written by the tools that shells have, for every encoding of the documented table."""

import base64
import html
import json
import os
import random
import shlex
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from sandherd_worker.redaction import MARK, Redactor
from sandherd_worker.redaction_forms import ENCODINGS, Reading
from sandherd_worker.redaction_views import View, compact, hexadecimal, unescaped
from sandherd_worker.stream_redaction import StreamRedactor

TOKEN = "".join(random.Random(11).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", k=93))
PHRASE = "p@ss w0rd/\"<mit> & Ünï+code' $x"
BODY = base64.b64encode(random.Random(12).randbytes(600)).decode()
PEM = "\n".join(
    (
        "-----BEGIN PRIVATE KEY-----",
        *(BODY[at : at + 64] for at in range(0, len(BODY), 64)),
        "-----END PRIVATE KEY-----",
    )
)
SECRETS = {"token": TOKEN, "phrase": PHRASE, "key": PEM}


def shell(command: str) -> Callable[[str], str]:
    """What a command of the shell writes about the secret in `$S`."""

    def run(secret: str) -> str:
        variables = {**os.environ, "S": secret, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(["bash", "-c", command], env=variables, capture_output=True, check=True)
        return done.stdout.decode("utf-8", "surrogateescape")

    return run


def _entities(form: str) -> Callable[[str], str]:
    return lambda text: "".join(f"&#{form}".replace("N", format(ord(one), "x" if "x" in form else "d")) for one in text)


def _lower_percent(text: str) -> str:
    return "".join(
        one if one.isalnum() and one.isascii() else "".join(f"%{byte:02x}" for byte in one.encode()) for one in text
    )


def _mixed_percent(text: str) -> str:
    return "".join(f"%{byte:02x}" if byte % 2 else f"%{byte:02X}" for byte in text.encode())


def _coloured(text: str) -> str:
    return "".join(f"\x1b[01;31m{one}\x1b[m" for one in text)


AHEAD = ("", "x", "xx", "xxx", "xxxx")
WRITERS: dict[int, dict[str, Callable[[str], str]]] = {
    0: {
        "printf": shell('printf %s "$S"'),
        "jq": lambda text: json.dumps(text)[1:-1],
        "JSON in JSON": lambda text: json.dumps(json.dumps(text)[1:-1])[1:-1],
    },
    1: {
        "%-encoding, capital digits": lambda text: quote(text, safe=""),
        "%-encoding, small digits": _lower_percent,
        "%-encoding of everything, mixed digits": _mixed_percent,
        "a form": quote_plus,
        "%-encoding of %-encoding": lambda text: quote(quote(text, safe=""), safe=""),
        "html": html.escape,
        "decimal entities": _entities("N;"),
        "hexadecimal entities": _entities("xN;"),
        "named entities": lambda text: html.escape(text).replace("Ü", "&Uuml;").replace("ï", "&iuml;"),
        "repr": lambda text: repr(text)[1:-1],
        "repr of bytes": lambda text: repr(text.encode())[2:-1],
        "ascii": lambda text: ascii(text)[1:-1],
        "\\u of everything": lambda text: "".join(f"\\u{ord(one):04X}" for one in text),
        "\\x of everything": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
        "octal escapes": lambda text: "".join(f"\\{byte:03o}" for byte in text.encode()),
        "bash": shell('printf %q "$S"'),
        "shlex": shlex.quote,
        "colours": _coloured,
    },
    2: {
        "fold": shell('printf %s "$S" | fold -w 20'),
        "indented": shell("printf %s \"$S\" | fold -w 33 | sed 's/^/    > /'"),
        "crlf": shell("printf %s \"$S\" | fold -w 40 | sed 's/$/\\r/'"),
        "one line": lambda text: text.replace("\n", "\\n"),
        "list of lines": lambda text: json.dumps([text[at : at + 30] for at in range(0, len(text), 30)], indent=2),
        "od -c without offsets": shell('printf %s "$S" | od -An -c -w64'),
    },
    3: {
        "base64": shell('printf %s "$S" | base64'),
        "base64 -w 0": shell('printf %s "$S" | base64 -w 0'),
        "base64 -w 1": shell('printf %s "$S" | base64 -w 1'),
        "basenc --base64url": shell('printf %s "$S" | basenc --base64url'),
        "echo": shell('echo "$S" | base64'),
        "HTTP Basic, one letter": shell('printf "u:%s" "$S" | base64'),
        "HTTP Basic, two letters": shell('printf "me:%s" "$S" | base64 -w 0'),
        "HTTP Basic, three letters": shell('printf "bob:%s" "$S" | base64 -w 0'),
        "HTTP Basic, the secret first": shell('printf "%s:x-oauth" "$S" | base64 -w 64'),
        "within JSON": lambda text: json.dumps({"a": base64.encodebytes(("x" + text).encode()).decode()}),
        "in a URL": lambda text: quote(base64.b64encode(("xy" + text).encode()).decode(), safe=""),
        "CRLF and blanks": shell("printf %s \"$S\" | base64 -w 60 | sed 's/^/      /; s/$/\\r/'"),
        "a kubernetes secret": shell("printf %s \"$S\" | base64 -w 70 | sed 's/^/    /'"),
        "python": lambda text: base64.encodebytes(text.encode()).decode(),
    },
    4: {f"base32 behind {ahead!r}": shell(f'printf "{ahead}%s" "$S" | base32') for ahead in AHEAD},
    5: {f"base32 behind {ahead!r}": shell(f'printf "{ahead}%s" "$S" | base32 -w 0 | tr A-Z a-z') for ahead in AHEAD},
    6: {
        "od -t x1": shell('printf %s "$S" | od -t x1'),
        "od -t x1 without offsets": shell('printf %s "$S" | od -An -v -t x1'),
        "od -t x1z": shell('printf "ab%s" "$S" | od -t x1z'),
        "od -b": shell('printf "abc%s" "$S" | od -b'),
        "bytes.hex": lambda text: text.encode().hex(),
        "capital, with colons": lambda text: text.encode().hex(":").upper(),
        "a C array": lambda text: ", ".join(f"0x{byte:02x}" for byte in text.encode()),
        "a list": lambda text: str(list(text.encode())),
        "a buffer of node": lambda text: json.dumps({"type": "Buffer", "data": list(text.encode())}),
        "as xxd writes": lambda text: _xxd(b"abc" + text.encode()),
        "as hexdump -C writes": lambda text: _hexdump(b"ab" + text.encode()),
    },
    7: {
        "od -x": shell('printf %s "$S" | od -x'),
        "od -x, the other way": shell('printf "a%s" "$S" | od -x'),
        "od -x without offsets": shell('printf "abc%s" "$S" | od -An -v -x'),
    },
}  # fmt: skip
"""By the number of the encoding in the table: who writes so. coreutils is everywhere; what else is used is Python's."""
CASES = [
    pytest.param(write, secret, id=f"{number}-{name}-{which}")
    for number, writers in WRITERS.items()
    for name, write in writers.items()
    for which, secret in SECRETS.items()
    if number != 2 or which != "phrase"
]
SHORT_PEM = "\n".join((PEM.splitlines()[0], *PEM.splitlines()[1:4], PEM.splitlines()[-1]))
STREAMED = [
    pytest.param(number, write, secret, id=f"{number}-{name}-{which}")
    for number, writers in WRITERS.items()
    for name, write in writers.items()
    for which, secret in {"token": TOKEN, "phrase": PHRASE, "key": SHORT_PEM}.items()
    if number != 2 or which != "phrase"
]


def _xxd(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        groups = " ".join(row[start : start + 2].hex() for start in range(0, len(row), 2))
        lines.append(f"{at:08x}: {groups:<39}  {_letters(row)}\n")
    return "".join(lines)


def _hexdump(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        lines.append(f"{at:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  |{_letters(row)}|\n")
    return "".join(lines)


def _letters(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)


def shown_of(text: str, redactor: Redactor) -> int:
    """How many characters stand outside of what is replaced, blanks not counted."""
    return len("".join(redactor.text(text).replace(MARK, "").split()))


def test_every_encoding_of_the_table_is_tried() -> None:
    """No row of the documented table goes without a test."""
    assert sorted(WRITERS) == list(range(len(ENCODINGS)))


_AROUND = 60
"""Characters that a form may have around the secret: offsets, a user's name, brackets."""


@pytest.mark.parametrize(("write", "secret"), CASES)
def test_an_encoded_secret_is_replaced(write: Callable[[str], str], secret: str) -> None:
    """Next to nothing of what the tool wrote is left, and the text before and behind it is."""
    text = write(secret)
    redactor = Redactor([secret, "another-secret-value"])
    cleaned = redactor.text(f"before: {text}\n# behind, as ever\n")
    left = "".join(cleaned.replace(MARK, "").split())
    assert MARK in cleaned
    assert left.startswith("before:")
    assert left.endswith("#behind,asever")
    allowed = _AROUND if len(text) > len(secret) + 2 else 0
    kept = len(left) - len("before:#behind,asever")
    assert kept <= allowed or _only_offsets(left), cleaned


def _only_offsets(left: str) -> bool:
    """Of a dump with many lines, an offset stays of each that nothing was found in: there must be few."""
    return left.count("0000") < 4


_WINDOW = {Reading.TEXT: 6, Reading.UNESCAPED: 6, Reading.COMPACT: 9, Reading.HEXADECIMAL: 12}
"""Consecutive characters of a form that are a leak: between three and six bytes of the secret."""


def windows(secret: str, number: int) -> set[bytes]:
    """Every part of the forms of a secret that may not be seen."""
    width = _WINDOW[ENCODINGS[number].reading]
    texts = [needle.text for needle in ENCODINGS[number].needles(secret.encode())]
    return {text[at : at + width] for text in texts for at in range(len(text) - width + 1)}


def seen_of(shown: str, number: int) -> set[bytes]:
    """Every part of a text of that length, as the encoding is read."""
    raw = shown.replace(MARK, " | ").encode("utf-8", "surrogateescape")
    reading = ENCODINGS[number].reading
    found: View | None = None
    if reading is Reading.UNESCAPED:
        found = unescaped(raw)
    elif reading is not Reading.TEXT:
        found = (compact if reading is Reading.COMPACT else hexadecimal)(raw)
    data = raw if found is None else found.data
    return {data[at : at + _WINDOW[reading]] for at in range(len(data))}


@pytest.mark.parametrize(("number", "write", "secret"), STREAMED)
def test_an_encoded_secret_is_replaced_however_its_output_is_cut(
    number: int, write: Callable[[str], str], secret: str
) -> None:
    """Every character by itself with a pause behind each, and in random pieces with and without pauses."""
    text = f"before:\n{write(secret)}\n# behind, as ever\n"
    redactor = Redactor([secret, "another-secret-value"])
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
    """Issue 11, finding 8: a token of 93 characters through `base64`, HTTP Basic, a wrapped PEM key."""
    redactor = Redactor([TOKEN, PEM])
    assert TOKEN[:60] not in _decoded(redactor.text(shell('printf "$S" | base64')(TOKEN)))
    for user in ("a", "ab", "abc"):
        assert TOKEN[3:] not in _decoded(redactor.text(base64.b64encode(f"{user}:{TOKEN}".encode()).decode()))
    assert BODY[:40] not in "".join(redactor.text(shell('printf %s "$S" | tr -d "\\n" | fold -w 50')(PEM)).split())


def _decoded(text: str) -> str:
    plain = "".join(text.replace(MARK, "").split()).rstrip("=")
    return base64.b64decode(plain + "A" * (-len(plain) % 4)).decode("latin-1")


@pytest.mark.parametrize("lines", [2, 5])
def test_a_part_of_a_key_is_replaced_however_it_is_wrapped(lines: int) -> None:
    """Some lines from the middle of a PEM file, in lines of another length."""
    body = PEM.splitlines()
    part = "".join(body[3 : 3 + lines])
    wrapped = "\n".join(part[at : at + 50] for at in range(0, len(part), 50))
    assert shown_of(wrapped, Redactor([PEM])) == 0


@pytest.mark.parametrize("secret", ["admin", "password1", "https://example.com/api", "correct horse battery staple"])
def test_ordinary_text_and_ordinary_secrets_do_not_meet(secret: str) -> None:
    """No encoded form of a short or wordy secret is found in source code, hashes, dumps and prose."""
    files = sorted(Path(__file__).parent.glob("*.py"))[:20]
    text = "".join(path.read_text() for path in files).replace(secret, "")
    assert Redactor([secret]).text(text) == Redactor().text(text)
    dumped = _xxd(text.encode()[:20_000]) + base64.encodebytes(text.encode()[:20_000]).decode()
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
def test_hostile_output_takes_linear_time(text: str) -> None:
    """Four times the text takes some four times the time, by the processor's clock; and a stream as well."""
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
