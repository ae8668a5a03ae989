"""The forms in which a secret may appear: one table for the search, the documentation and the tests."""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from sandherd_worker.redaction_search import Needle
from sandherd_worker.redaction_views import compact, unescaped

SHORTEST_SECRET: Final = 4
"""A secret of fewer bytes is not searched for."""
SHORTEST_ENCODED: Final = 8
"""A secret of at least this length in bytes is also searched for in its encoded forms."""
SHORTEST_LINE: Final = 16
"""A line of a multi-line secret (a key) of at least this length counts as a secret by itself."""
_BASE64_ALIGNMENTS: Final = 3
_BASE32_ALIGNMENTS: Final = 5
"""How many alignments a secret may have within base64 (groups of 3 bytes) and base32 (groups of 5 bytes)."""


class TextReading(StrEnum):
    """The view of a text in which an encoding of a secret is searched for."""

    TEXT = "text"
    UNESCAPED = "unescaped"
    COMPACT = "compact"
    HEXADECIMAL = "hexadecimal"


@dataclass(frozen=True, slots=True)
class SecretEncoding:
    """One encoding of secrets. `tools` produce it. Secrets under `shortest` bytes are not searched for in it."""

    name: str
    tools: str
    reading: TextReading
    needles: Callable[[bytes], Iterable[Needle]]
    shortest: int = SHORTEST_ENCODED


def literal_forms(secret: str) -> Iterator[str]:
    """A secret as it may appear in a text, in JSON and in a URL, and its lines of `SHORTEST_LINE` or more."""
    yield quote(secret, safe="", errors="surrogatepass")
    for text in dict.fromkeys((secret, secret.replace("\\n", "\n"))):
        yield from _plain_and_in_json(text)
        for line in text.splitlines():
            if len(line) >= SHORTEST_LINE:
                yield from (line, *_in_json(line))


def _plain_and_in_json(text: str) -> Iterator[str]:
    yield text
    for form in _json_variants(text):
        yield form
        yield from _in_json(form)


def _in_json(text: str) -> tuple[str, str]:
    """A string as JSON writes it, first in ASCII only, then with all characters."""
    return json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
_JSON_ESCAPES_FOR_HTML: Final = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}


def _json_variants(text: str) -> Iterator[str]:
    """The text in JSON, and in JSON with escapes that only the libraries of some languages write."""
    for form in _in_json(text):
        yield form
        yield _ESCAPE.sub(lambda found: found[0][:2] + found[0][2:].upper(), form)
        yield form.translate(_JSON_ESCAPES_FOR_HTML)
        yield form.replace("/", r"\/")


def _literal(secret: bytes) -> Iterator[Needle]:
    for form in literal_forms(secret.decode("utf-8", "surrogatepass")):
        yield Needle(form.encode("utf-8", "surrogatepass"))


def _unescaped(secret: bytes) -> Iterator[Needle]:
    """The secret as it is, and with escapes decoded once and twice, since it may contain what looks like an escape."""
    view = unescaped(secret)
    once = secret if view is None else view.data
    again = unescaped(once)
    for text in dict.fromkeys((secret, once, once if again is None else again.data, _latin_bytes(secret))):
        yield Needle(text)
        yield Needle(text.replace(b" ", b"+"))
        yield from (Needle(line) for line in text.splitlines() if len(line) >= SHORTEST_LINE)


def _latin_bytes(secret: bytes) -> bytes:
    """The secret with each character below 256 as one byte: `ascii()` writes its code as a hexadecimal escape."""
    letters = secret.decode("utf-8", "surrogatepass")
    return b"".join(bytes([ord(one)]) if ord(one) < 256 else one.encode("utf-8", "surrogatepass") for one in letters)


def _wrapped_form(secret: bytes) -> Iterator[Needle]:
    """The letters and digits of the secret; for a PEM file, those of its body."""
    plain = secret.replace(b"\\n", b"\n")
    body = b"\n".join(line for line in plain.splitlines() if not line.strip().startswith(b"-----"))
    letters_and_digits = compact(body).data
    if len(letters_and_digits) >= SHORTEST_LINE:
        yield Needle(letters_and_digits)


def _aligned_forms(encode: Callable[[bytes], bytes], bits: int, before: int) -> Callable[[bytes], Iterator[Needle]]:
    """Creates the encoded forms of a secret, one per alignment, of those characters that no adjacent byte affects."""

    def needles(secret: bytes) -> Iterator[Needle]:
        for ahead in range(before):
            first, rest = divmod(8 * ahead, bits)
            last, over = divmod(8 * (ahead + len(secret)), bits)
            text = encode(bytes(ahead) + secret)[first + (rest > 0) : last]
            yield Needle(compact(text).data, before=int(rest > 0), after=int(over > 0))

    return needles


def _base32_lower(secret: bytes) -> bytes:
    return base64.b32encode(secret).lower()


def _dump_of_bytes(secret: bytes) -> Iterator[Needle]:
    """The digits of a secret's bytes: in hexadecimal, octal and decimal, and of its UTF-16 form in hexadecimal."""
    yield Needle(secret.hex().encode())
    yield Needle("".join(f"0{one:02x}" for one in secret).encode())
    yield Needle("".join(f"{one:03o}" for one in secret).encode())
    yield Needle("".join(str(one) for one in secret).encode())
    yield Needle("".join(str(one if one < 128 else 256 - one) for one in secret).encode())
    yield Needle(secret.decode("utf-8", "surrogatepass").encode("utf-16-be", "surrogatepass").hex().encode())


def _byte_swapped(secret: bytes) -> Iterator[Needle]:
    """The secret in words of two swapped bytes, as `od -x` and `hexdump` write them on little-endian machines."""
    for first in (0, 1):
        half = (len(secret) - first) % 2
        inner = secret[first : len(secret) - half]
        pairs = (inner[at : at + 2] for at in range(0, len(inner), 2))
        yield Needle("".join(pair[::-1].hex() for pair in pairs).encode(), before=4 * first, after=4 * half)


_BASE32: Final = "base32, in upper or lower case, at any position within a longer encoded text, wrapped at any column"
ENCODINGS: Final = (
    SecretEncoding(
        "unchanged, or as a string in JSON (also within JSON)",
        "`echo`, `jq`",
        TextReading.TEXT,
        _literal,
        SHORTEST_SECRET,
    ),
    SecretEncoding(
        "with escapes for all or some characters, also with escapes within escapes: percent-encoding with upper- or "
        "lower-case digits, `+` for a space, HTML entities by name or number, and the escapes of JSON, C, Python and "
        "shells; also if a terminal's colours or links are in between",
        "`jq @uri`, `jq @html`, `jq @sh`, `repr()`, `ascii()`, `printf %q`, `set -x`, `grep --color`",
        TextReading.UNESCAPED,
        _unescaped,
        SHORTEST_SECRET,
    ),
    SecretEncoding(
        "wrapped, indented, quoted, with other spaces, or with a sign such as `>` before each line, if the value has "
        "at least 16 letters and digits; also the body of a PEM file",
        "`fold`, `sed 's/^/> /'`, `diff -u`, `od -c`, YAML, a key as one line with `\\n`",
        TextReading.COMPACT,
        _wrapped_form,
    ),
    SecretEncoding(
        "base64, standard or URL-safe, at any position within a longer encoded text, wrapped at any column",
        "`base64`, `openssl base64`, MIME, HTTP Basic `user:secret`",
        TextReading.COMPACT,
        _aligned_forms(base64.b64encode, 6, _BASE64_ALIGNMENTS),
    ),
    SecretEncoding(_BASE32, "`base32`", TextReading.COMPACT, _aligned_forms(base64.b32encode, 5, _BASE32_ALIGNMENTS)),
    SecretEncoding(_BASE32, "`base32`", TextReading.COMPACT, _aligned_forms(_base32_lower, 5, _BASE32_ALIGNMENTS)),
    SecretEncoding(
        "bytes in hexadecimal, octal or decimal, with any separators, also with offsets and a text column, or in JSON",
        "`xxd`, `od -t x1`, `od -t d1`, `od -b`, `hexdump -C`, `list(bytes)`",
        TextReading.HEXADECIMAL,
        _dump_of_bytes,
    ),
    SecretEncoding(
        "words of two bytes in hexadecimal, with the second byte first",
        "`od -x`, `hexdump`, `hexdump -x`",
        TextReading.HEXADECIMAL,
        _byte_swapped,
    ),
)
NOT_COVERED: Final = (
    "a value that is shorter than the minimum length of its form",
    (
        "a part of a value, except a whole line of at least 16 characters, and 63 or more characters in a row of "
        "an encoded form"
    ),
    "text that is reversed, compressed, encrypted, hashed, or encoded in a form that is not in the table",
    "binary digits (`xxd -b`); words of four or eight bytes; octal or decimal words of two bytes (`od`, `hexdump -d`)",
    "quoted-printable, base58 and base85",
    "in a field that is always a number: a value of fewer than 8 digits, or a value that is only a part of the number",
    "a value with other text in between, or in two encodings, one within the other, unless one of them is an escape",
    (
        "a value that is wrapped over several lines, if each line begins with letters or digits of another program "
        "(`docker compose logs`, `nl`); in such lines also the text column of a hexadecimal dump"
    ),
    "a dump whose offsets do not begin with 0, as `od` prints them from 256 KiB on and `xxd` from 256 MiB on",
    (
        "a value of fewer than 32 bytes in several rows of a dump by `xxd`, if the offsets are cut off, or if the "
        "first row begins after other text"
    ),
    "a dump whose rows alternate between two formats (`od -t x1 -t c`); bytes that `pprint` wraps; a list of `oct()`",
    "a value with characters outside ASCII in the output of `od -a` or `od -c`, or in octal escapes; UTF-16 in base64",
)


def needles(secrets: Iterable[str], reading: TextReading) -> Iterator[Needle]:
    """The byte strings to search for in this view of a text."""
    for secret in secrets:
        raw = secret.encode("utf-8", "surrogatepass")
        for encoding in ENCODINGS:
            if encoding.reading is reading and len(raw) >= encoding.shortest:
                forms = encoding.needles(raw)
                yield from (needle for needle in forms if len(needle.text) >= SHORTEST_SECRET)
