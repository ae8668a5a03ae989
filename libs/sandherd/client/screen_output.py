"""Filters the output of an interactive program for this terminal, so that it affects only the screen.

A program with a terminal needs control sequences, for example to move the cursor and set colours. Sequences that affect
more than the screen are left out: strings for the terminal itself (title, clipboard, files), window operations (one
makes the terminal type its title as input), and printing.
"""

import re
from typing import Final

_ESCAPE: Final = "\x1b"
_STRING_STARTS: Final = "]PX^_"
"""The characters after ESC that begin OSC, DCS, SOS, PM and APC: a text for the terminal, not for the screen."""
_REFUSED_FINAL_CHARACTERS: Final = "ti"
"""The last characters of CSI t (window operations and reports) and CSI i (print)."""
_C1_CONTROLS: Final = re.compile("[\x80-\x9f]")
_CONTROL_SEQUENCE: Final = re.compile(r"\x1b\[[\x30-\x3f]*[\x20-\x2f]*([\x40-\x7e])")
_PARTIAL_SEQUENCE: Final = re.compile(r"\x1b(\[[\x30-\x3f]{0,256}[\x20-\x2f]{0,16})?")
_SHORT_SEQUENCE: Final = re.compile(r"\x1b([\x20-\x2f]{1,4}[\x30-\x7e]|[\x30-\x5a\x5c\x60-\x7e])")
_PARTIAL_SHORT_SEQUENCE: Final = re.compile(r"\x1b[\x20-\x2f]{0,4}")
_STRING_END: Final = re.compile("\x07|\x1b\\\\|\x18|\x1a")
RESTORE: Final = "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[?25h\x1b(B\x1b[0m"
"""Resets the modes that a program may have set: alternate screen, mouse reports, bracketed paste, application keys,
hidden cursor, character set, colours."""


class ScreenFilter:
    """Filters text that arrives in pieces; a sequence may be split between them."""

    def __init__(self) -> None:
        self._pending = ""
        self._in_string = False

    def feed(self, text: str) -> str:
        """The part of the text received so far that is to be written to the terminal now."""
        rest, output = self._pending + _C1_CONTROLS.sub("", text), []
        self._pending = ""
        while rest:
            if self._in_string:
                rest = self._skip_string(rest)
                continue
            plain, escape, after = rest.partition(_ESCAPE)
            output.append(plain)
            rest = self._sequence(escape + after, output) if escape else ""
        return "".join(output)

    def _skip_string(self, text: str) -> str:
        end = _STRING_END.search(text)
        if end is None:
            self._pending = _ESCAPE if text.endswith(_ESCAPE) else ""
            return ""
        self._in_string = False
        return text[end.end() :]

    def _sequence(self, text: str, output: list[str]) -> str:
        """Append the escape sequence at the beginning of `text` to `output`, if it is allowed. Returns the rest."""
        if _PARTIAL_SEQUENCE.fullmatch(text) or _PARTIAL_SHORT_SEQUENCE.fullmatch(text):
            self._pending = text
            return ""
        if text[1] in _STRING_STARTS:
            self._in_string = True
            return text[2:]
        match = _CONTROL_SEQUENCE.match(text) or _SHORT_SEQUENCE.match(text)
        if match is None:
            return text[1:]
        if not (match[0].startswith("\x1b[") and match[0][-1] in _REFUSED_FINAL_CHARACTERS):
            output.append(match[0])
        return text[match.end() :]
