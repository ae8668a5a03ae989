"""Who writes secrets down, and how: for every encoding of the documented table, the tools that write it."""

import base64
import html
import json
import os
import random
import shlex
import subprocess
from collections.abc import Callable
from functools import cache
from urllib.parse import quote, quote_plus

import pytest

from sandherd_worker.redaction import MARK, Redactor

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


@cache
def redactor_of(*secrets: str) -> Redactor:
    """A redactor of these secrets, which many tests share: to prepare the search for a key takes some 50 ms."""
    return Redactor(secrets)


def shell(command: str) -> Callable[[str], str]:
    """What a command of the shell writes about the secret in `$S`."""

    @cache
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


def ahead(sign: str, write: Callable[[str], str]) -> Callable[[str], str]:
    """The same with a sign ahead of each line, as in a diff, a comment, a quotation or a list."""
    return lambda text: "".join(f"{sign}{line}\n" for line in write(text).splitlines())


SIGNS = ("  - ", "// ", "+", "-", "> ", "| ", "* ", "# ", "│ ", ";; ", "++", "/", "+  - ", "%% ")
"""What lines may begin with that are quoted, listed, compared or made a comment."""
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
        "set -x": lambda text: shell('(set -x; : "$S") 2>&1')(text).removeprefix("+ : "),
        "jq @sh": lambda text: text.replace("'", "'\\''"),
        "jq @sh in JSON": lambda text: json.dumps(text.replace("'", "'\\''"))[1:-1],
        "shlex in JSON": lambda text: json.dumps(shlex.quote(text))[1:-1],
        "escape() of JavaScript": lambda text: "".join(f"%{ord(one):02X}" for one in text),
        "charsets of a terminal": "\x1b(B".join,
        "links of a terminal": lambda text: "\x1b]8;;http://a.b/\x1b\\".join(folded(text, 5)),
        "titles of a terminal": lambda text: "\x1b]0;t\x07".join(folded(text, 3)),
        "short octal escapes": lambda text: "".join(f"\\{byte:o}" for byte in text.encode()),
        "padded entities": _entities("x000N;"),
        "\\U of everything": lambda text: "".join(f"\\U{ord(one):08x}" for one in text),
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
        **{f"behind {sign!r}": ahead(sign, shell('printf %s "$S" | fold -w 14')) for sign in SIGNS},
        "diff -u": shell("diff -u /dev/null <(printf %s \"$S\" | fold -w 18 | sed 's/^/  - /') | tail -n +4"),
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
        **{f"behind {sign!r}": ahead(sign, shell('printf "x%s" "$S" | base64 -w 16')) for sign in SIGNS[1:4]},
        "URL-safe in a diff": ahead("-", shell('printf "%s" "$S" | basenc --base64url -w 10')),
    },
    4: {f"base32 behind {ahead!r}": shell(f'printf "{ahead}%s" "$S" | base32') for ahead in AHEAD},
    5: {f"base32 behind {ahead!r}": shell(f'printf "{ahead}%s" "$S" | base32 -w 0 | tr A-Z a-z') for ahead in AHEAD},
    6: {
        "od -t x1": shell('printf %s "$S" | od -t x1'),
        "od -t x1 without offsets": shell('printf %s "$S" | od -An -v -t x1'),
        "od -t x1z": shell('printf "ab%s" "$S" | od -t x1z'),
        "od -t x1z without offsets": shell('printf "abc%s" "$S" | od -An -t x1z'),
        "od -t u1z without offsets": shell('printf "ab%s" "$S" | od -An -w8 -t u1z'),
        "od -t x1z without offsets within JSON": lambda text: json.dumps(
            shell('printf %s "$S" | od -An -t x1z')(text)
        ),
        "od -t x1z in a diff": ahead("+", shell('printf "abc%s" "$S" | od -An -t x1z')),
        "hexdump -C without offsets": lambda text: "\n".join(row[9:] for row in _hexdump(text.encode()).splitlines()),
        "od -b": shell('printf "abc%s" "$S" | od -b'),
        "bytes.hex": lambda text: text.encode().hex(),
        "capital, with colons": lambda text: text.encode().hex(":").upper(),
        "a C array": lambda text: ", ".join(f"0x{byte:02x}" for byte in text.encode()),
        "a list": lambda text: str(list(text.encode())),
        "a buffer of node": lambda text: json.dumps({"type": "Buffer", "data": list(text.encode())}),
        "as xxd writes": lambda text: xxd(b"abc" + text.encode()),
        **{f"xxd behind {sign!r}": ahead(sign, lambda text: xxd(b"a" + text.encode())) for sign in SIGNS[1:4]},
        "xxd -g 0": shell('printf %s "$S" | xxd -g 0'),
        "xxd -g 16": shell('printf "ab%s" "$S" | xxd -g 16'),
        "xxd -g 24 -c 24": shell('printf "ab%s" "$S" | xxd -g 24 -c 24'),
        "od -t d1": shell('printf "ab%s" "$S" | od -t d1'),
        "od -t u1": shell('printf %s "$S" | od -A x -t u1'),
        "hexdump -b": shell('printf %s "$S" | hexdump -b'),
        "xxd | jq -Rs": lambda text: json.dumps({"out": xxd(text.encode())}),
        "xxd within JSON in JSON": lambda text: json.dumps(json.dumps(xxd(b"x" + text.encode()))),
        "hexdump -C within JSON": lambda text: json.dumps(_hexdump(text.encode())),
        "rows as strings of JSON": lambda text: json.dumps(xxd(text.encode()).splitlines(), indent=1),
        "od -t x1z within repr": lambda text: repr(shell('printf %s "$S" | od -t x1z')(text)),
        "hexdump -C in a quotation": ahead("> ", lambda text: _hexdump(text.encode())),
        "od -b in a diff": ahead("+", shell('printf "abc%s" "$S" | od -b')),
        "as hexdump -C writes": lambda text: _hexdump(b"ab" + text.encode()),
    },
    7: {
        "od -x": shell('printf %s "$S" | od -x'),
        "od -x, the other way": shell('printf "a%s" "$S" | od -x'),
        "hexdump -x": shell('printf %s "$S" | hexdump -x'),
        "hexdump -x within JSON": lambda text: json.dumps(shell('printf "a%s" "$S" | hexdump -x')(text)),
        "od -x in a list": ahead("  - ", shell('printf "a%s" "$S" | od -x')),
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


def xxd(data: bytes) -> str:
    """As `xxd` writes it, which is not everywhere."""
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


def folded(text: str, width: int) -> list[str]:
    """The text in lines of that many characters."""
    return [text[at : at + width] for at in range(0, len(text), width)]


def shown_of(text: str, redactor: Redactor) -> int:
    """How many characters stand outside of what is replaced, blanks not counted."""
    return len("".join(redactor.text(text).replace(MARK, "").split()))
