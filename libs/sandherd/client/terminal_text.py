"""The only way from this program to a screen: text from elsewhere can't control a terminal, nor hide or reorder words.

Everything that is printed goes through `put`, `put_json` or `put_output`. What is neutralised stays visible: `␛` for a
control character of ASCII, `<U+202E>` for any other character that has no shape of its own.
"""

import re
import sys
from functools import cache
from types import TracebackType
from typing import Final

_INVISIBLE: Final = (
    r"\x80-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\uffff\U000110bd\U000110cd"
    r"\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff"
)
"""Controls of ISO 6429, format and bidirectional controls, line separators, fillers, tags, variation selectors, halves
of surrogate pairs. The two selectors that choose between a sign and its picture (U+FE0E, U+FE0F) stay, once."""
_MARKS: Final = r"\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_FORBIDDEN: Final = re.compile(
    rf"\r\n|[\x00-\x08\x0b-\x1f\x7f{_INVISIBLE}]|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]|(?<=[{_MARKS}]{{4}})[{_MARKS}]"
)
_IN_JSON: Final = re.compile(rf"[\x00-\x09\x0b-\x1f\x7f{_INVISIBLE}\ufe0e\ufe0f]")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,32}m")
_OWN_COLOUR: Final = re.compile(r"\x1b\[(?:0|1|2|3[1-6])m")
"""What `colours.Paint` writes."""
_CONCEALING: Final = re.compile(r"(?:^|;)0*8(?:;|$)")


def visible(text: str) -> str:
    """Text in which nothing controls a terminal. Line ends and tabs stay."""
    return _FORBIDDEN.sub(_shown, text)


def visible_line(text: str) -> str:
    """The same in one line."""
    return " ".join(visible(text).split())


def visible_output(text: str, *, colours: bool) -> str:
    """Output of a terminal: visible, without carriage returns, and with its colours where they are wanted."""
    pieces = _COLOUR.split(text)
    found = [_harmless(code) if colours else "" for code in _COLOUR.findall(text)]
    shown = (visible(piece.replace("\r", "")) for piece in pieces)
    return "".join(piece + colour for piece, colour in zip(shown, [*found, ""], strict=True))


def visible_json(document: str) -> str:
    """A JSON document with every character that has no shape written as its number: the same document."""
    return _IN_JSON.sub(_escaped, document)


def put(text: str = "", *, end: str = "\n", error: bool = False, flush: bool = False) -> None:
    """Print text; of its colours only those that the command itself gives, and only on a terminal."""
    out = sys.stderr if error else sys.stdout
    shown = _with_own_colours(text) if _OWN_COLOUR.search(text) and out.isatty() else visible(text)
    out.write(shown + end)
    if flush:
        out.flush()


def put_json(document: str, *, flush: bool = False) -> None:
    """Print a JSON document."""
    sys.stdout.write(visible_json(document) + "\n")
    if flush:
        sys.stdout.flush()


def put_output(text: str, *, colours: bool, error: bool = False) -> None:
    """Print output of a sandbox's terminal, at once."""
    out = sys.stderr if error else sys.stdout
    out.write(visible_output(text, colours=colours))
    out.flush()


def may_put_exactly(*, error: bool = False) -> bool:
    """Whether bytes of a sandbox may be written as they are: not to a terminal, which they could control."""
    return not (sys.stderr if error else sys.stdout).isatty()


def put_exactly(data: bytes, *, error: bool = False) -> None:
    """Write bytes of a sandbox to a pipe or a file. Raises `ValueError` for a terminal: they could control it."""
    out = sys.stderr if error else sys.stdout
    if not may_put_exactly(error=error):
        raise ValueError("bytes of a sandbox are not written to a terminal")
    out.flush()
    out.buffer.write(data)
    out.buffer.flush()


def put_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that nothing has caught: its message may be from a sandbox."""
    import traceback  # only for a fault

    for line in traceback.format_exception(kind, error, trace):
        put(line, end="", error=True)


def put_progress(line: str) -> None:
    """Replace the last line of standard error, which is a terminal."""
    sys.stderr.write(f"\r\x1b[K{visible_line(line)}")
    sys.stderr.flush()


def _with_own_colours(text: str) -> str:
    pieces, codes = _OWN_COLOUR.split(text), _OWN_COLOUR.findall(text)
    return "".join(visible(piece) + code for piece, code in zip(pieces, [*codes, ""], strict=True))


def _harmless(code: str) -> str:
    """A colour; not one that hides what follows."""
    return "" if _CONCEALING.search(code[2:-1]) else code


@cache
def _name(letter: str) -> str:
    code = ord(letter)
    if code < 0x20:  # the controls of ASCII have pictures
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"<U+{code:04X}>"


def _shown(found: re.Match[str]) -> str:
    return "\n" if found[0] == "\r\n" else _name(found[0])


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code > 0xFFFF:  # two halves, as JSON has it
        high, low = divmod(code - 0x10000, 0x400)
        return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
    return f"\\u{code:04x}"
