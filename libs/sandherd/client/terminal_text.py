"""All terminal output: text from other sources can neither control a terminal, nor hide or reorder words.

Everything is printed by the functions of this module. A character that could do so is replaced by a visible text: `␛`
for an ASCII control character, `<U+202E>` for any other character without a visible shape.
"""

import io
import os
import re
import select
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import Final, TextIO

_INVISIBLE: Final = (
    r"\x80-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\uffff\U000110bd\U000110cd"
    r"\U00016fe4\U0001d159"
    r"\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff"
)
"""Controls of ISO 6429, format and bidirectional controls, line separators, fillers, blank signs, tags, variation
selectors, halves of surrogate pairs. One selector of text or emoji presentation (U+FE0E, U+FE0F) after a character
stays."""
_CONTROL_CHARACTERS: Final = re.compile(rf"\r\n|[\x00-\x08\x0b-\x1f\x7f{_INVISIBLE}]|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]")
_MAY_BE_MARKED: Final = re.compile(r"[\u0300-\U0010ffff]{5,}")
"""A text in which more than four combining marks may follow each other: the first combining mark is U+0300."""
_MARK_CATEGORIES: Final = frozenset({"Mn", "Me", "Mc"})
_MAX_MARKS: Final = 4
"""Maximum number of marks on one letter; no language needs more. More would cover the lines above and below."""
_ESCAPED_IN_JSON: Final = re.compile(rf"[\x00-\x09\x0b-\x1f\x7f{_INVISIBLE}\ufe0e\ufe0f]")
_COLOUR_SEQUENCE: Final = re.compile(r"\x1b\[[0-9;]{0,32}m")
_PAINT_SEQUENCE: Final = re.compile(r"\x1b\[(?:0|1|2|3[1-6])m")
"""The sequences that `colours.Paint` writes."""
_LEGIBLE_ATTRIBUTES: Final = frozenset({0, 1, 2, 3, 4, 7, 9, *range(22, 30), *range(31, 37), 39, *range(90, 97)})
"""Attributes and colours of ISO 6429 that are legible on dark and light terminals. No background, black, white or
palette: text in the colour of its background is hidden."""
_COLOUR_PARAMETERS: Final = {5: 1, 2: 3}
"""The count of numbers that follow `38;5` (an entry of a palette) and `38;2` (red, green, blue)."""
_RESET: Final = "\x1b[0m"
_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"
"""Clears the screen. It has no ESC[3J, which would also erase the lines above the screen."""
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_ERASE_LINE: Final = "\r\x1b[K"
_DEFAULT_COLUMNS: Final = 80
_STREAMS: Final = ("stdin", "stdout", "stderr")
_STREAM_MODES: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}
_NULL_MODES: Final = {"stdin": os.O_RDONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
"""How the null device is opened in place of a closed stream. A write to standard output must fail (EBADF), as on a full
disk. A write to standard error must not: without it, only the exit status reports an error."""


class _Progress:
    """The line of progress at the end of standard error: it is erased before anything else is written."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_shown = False

    def erase(self) -> None:
        """Erase the line of progress, if it is shown. The caller holds `lock`."""
        if self.is_shown:
            self.is_shown = False
            with suppress(OSError, ValueError):
                sys.stderr.write(_ERASE_LINE)
                sys.stderr.flush()


_PROGRESS: Final = _Progress()


class OutputError(OSError):
    """Standard output or error can't be written: a full disk, a closed descriptor. A closed pipe is another error."""


def open_streams() -> None:
    """Open the null device in place of closed standard streams, and escape characters that a stream can't encode.

    The next file or connection would reuse the descriptor of a closed stream, and Python has no object for the stream.
    """
    for number, name in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            _open_null(number, name)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Write the buffer of standard output as far as possible, and drop the rest.

    Otherwise Python would try to write it again at exit, and report the error in another form.
    """
    with suppress(OSError):
        sys.stdout.flush()
    _connect_to_null(sys.stdout)


def has_reader() -> bool:
    """Whether standard output has a reader: it is not a pipe or socket whose reader has closed it."""
    out = select.poll()
    out.register(sys.stdout.fileno(), 0)
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in out.poll(0))


@contextmanager
def same_streams() -> Iterator[None]:
    """A context after which the standard streams are the same as before, even if a library has replaced them."""
    streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _connect_to_null(out: TextIO) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, out.fileno())
    os.close(null)


def _open_null(number: int, name: str) -> None:
    descriptor = os.open(os.devnull, _NULL_MODES[name])
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
    setattr(sys, name, open(number, _STREAM_MODES[name], encoding="utf-8", closefd=False))  # noqa: SIM115  # a descriptor


def visible(text: str) -> str:
    """The text without characters that control a terminal. Line ends and tabs stay."""
    return _MAY_BE_MARKED.sub(_limited_marks, _CONTROL_CHARACTERS.sub(_visible_character, text))


def visible_line(text: str) -> str:
    """The text in one line, without characters that control a terminal."""
    return " ".join(visible(text).split())


def visible_output(text: str, *, colours: bool) -> str:
    """The output of a sandbox's terminal as visible text without carriage returns.

    With `colours`, it has those of its colours that are legible; they are reset at the end of the text.
    """
    pieces = _COLOUR_SEQUENCE.split(text)
    sequences = [_legible_sequence(code) if colours else "" for code in _COLOUR_SEQUENCE.findall(text)]
    shown = (visible(piece.replace("\r", "")) for piece in pieces)
    end = _RESET if any(sequences) and [code for code in sequences if code][-1] != _RESET else ""
    return "".join(piece + colour for piece, colour in zip(shown, [*sequences, end], strict=True))


def visible_json(document: str) -> str:
    """An equivalent JSON document in which every character without a visible shape is escaped."""
    return _ESCAPED_IN_JSON.sub(_escape, document)


def write_text(text: str = "", *, end: str = "\n", error: bool = False, flush: bool = False) -> None:
    """Print text. Only the colours of `colours.Paint` remain, and only on a terminal.

    A message that can't be written to standard error is dropped, because it must not change what the command does.
    """
    out = sys.stderr if error else sys.stdout
    output = _with_paint_colours(text) if _PAINT_SEQUENCE.search(text) and out.isatty() else visible(text)
    with _error_discarded() if error else _output_errors():
        out.write(output + end)
        if flush:
            out.flush()


def write_json(document: str, *, flush: bool = False) -> None:
    """Print a JSON document; in ASCII if the encoding of standard output lacks one of its characters."""
    text = visible_json(document) + "\n"
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = _NOT_ASCII.sub(_escape, text)
    with _output_errors():
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()


def write_output(text: str, *, colours: bool, error: bool = False) -> None:
    """Print output of a sandbox's terminal, and flush."""
    out = sys.stderr if error else sys.stdout
    with _output_errors():
        out.write(visible_output(text, colours=colours))
        out.flush()


def may_write_exactly(*, error: bool = False) -> bool:
    """Whether a sandbox's bytes may be written unchanged: not to a terminal, which they could control."""
    return not (sys.stderr if error else sys.stdout).isatty()


def write_exactly(data: bytes, *, error: bool = False) -> None:
    """Write bytes of a sandbox to a pipe or a file. Raises `ValueError` for a terminal, which they could control."""
    out = sys.stderr if error else sys.stdout
    if not may_write_exactly(error=error):
        raise ValueError("bytes of a sandbox are not written to a terminal")
    with _output_errors():
        out.flush()
        out.buffer.write(data)
        out.buffer.flush()


def write_screen(text: str) -> None:
    """Write the output of an interactive program, as `screen_output.ScreenFilter` returns it, to the terminal."""
    with _output_errors():
        sys.stdout.buffer.write(text.encode(sys.stdout.encoding or "utf-8", "replace"))
        sys.stdout.buffer.flush()


def flush_output() -> None:
    """Write the buffers of the standard streams. Raises `OutputError`, or `BrokenPipeError` without a reader."""
    if sys.stderr is not None:  # None if the process was started without standard error
        with _error_discarded():
            sys.stderr.flush()
    if sys.stdout is not None:
        with _output_errors():
            sys.stdout.flush()


@contextmanager
def _output_errors() -> Iterator[None]:
    with _PROGRESS.lock:
        _PROGRESS.erase()
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from error


@contextmanager
def _error_discarded() -> Iterator[None]:
    """A context that connects standard error to the null device after an error.

    Otherwise Python would try to write the rest at exit, and end with status 120.
    """
    with _PROGRESS.lock:
        _PROGRESS.erase()
        try:
            yield
        except OSError:
            with suppress(OSError, ValueError):
                _connect_to_null(sys.stderr)


def write_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception as visible text, because its message may come from a sandbox."""
    import traceback  # only needed for uncaught exceptions

    for line in traceback.format_exception(kind, error, trace):
        write_text(line, end="", error=True)


def read_hidden(prompt: str) -> str:
    """A line typed on the terminal without echo. A colon is added to `prompt`."""
    import getpass  # only needed for prompts

    return getpass.getpass(f"{visible_line(prompt)}: ")


def prompt_for_confirmation(question: str) -> bool:
    """Whether the user types `y` or `yes` on the terminal, after the question."""
    write_text(f"{visible_line(question)} [y/N]: ", end="", error=True, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def clear_screen() -> None:
    """Clear the terminal. Does nothing if standard output is not a terminal."""
    if sys.stdout.isatty():
        with _output_errors():
            sys.stdout.write(_CLEAR_SCREEN)


def write_progress(line: str) -> None:
    """Replace the last line of standard error, which must be a terminal. It is erased before other output."""
    with _error_discarded():
        sys.stderr.write(_ERASE_LINE + _in_columns(visible_line(line), _columns() - 1))
        sys.stderr.flush()
        _PROGRESS.is_shown = True


def clear_progress() -> None:
    """Erase the line of progress, if there is one."""
    with _PROGRESS.lock:
        _PROGRESS.erase()


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _DEFAULT_COLUMNS
    except (OSError, ValueError):
        return _DEFAULT_COLUMNS


def _in_columns(line: str, columns: int) -> str:
    """The beginning of a line that fits into `columns`: a longer one would wrap, and could not be erased completely."""
    beginning, used_columns = "", 0
    for letter in line:
        used_columns += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if used_columns > columns:
            break
        beginning += letter
    return beginning


def _with_paint_colours(text: str) -> str:
    pieces, codes = _PAINT_SEQUENCE.split(text), _PAINT_SEQUENCE.findall(text)
    return "".join(visible(piece) + code for piece, code in zip(pieces, [*codes, ""], strict=True))


def _legible_sequence(code: str) -> str:
    """The colour sequence without the parts that could hide the text after it; empty if no other part is left."""
    numbers = [int(number or 0) for number in code[2:-1].split(";")]
    harmless: list[int] = []
    while numbers:
        number = numbers.pop(0)
        if number in (38, 48, 58):
            del numbers[: 1 + _COLOUR_PARAMETERS.get(numbers[0], 0) if numbers else 0]
        elif number in _LEGIBLE_ATTRIBUTES:
            harmless.append(number)
    return f"\x1b[{';'.join(map(str, harmless))}m" if harmless else ""


def _limited_marks(match: re.Match[str]) -> str:
    """The text, in which marks above the maximum for one letter are replaced by their names."""
    output, marks = "", 0
    for letter in match[0]:
        marks = marks + 1 if unicodedata.category(letter) in _MARK_CATEGORIES else 0
        output += letter if marks <= _MAX_MARKS else _visible_name(letter)
    return output


@cache
def _visible_name(letter: str) -> str:
    code = ord(letter)
    if code < 0x20:  # Unicode has pictures of the ASCII control characters
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"<U+{code:04X}>"


def _visible_character(match: re.Match[str]) -> str:
    return "\n" if match[0] == "\r\n" else _visible_name(match[0])


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code > 0xFFFF:  # a surrogate pair in JSON
        high, low = divmod(code - 0x10000, 0x400)
        return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
    return f"\\u{code:04x}"
