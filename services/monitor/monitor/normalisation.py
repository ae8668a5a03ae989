"""Digests of inputs, results and errors, by which calls are compared. Pure.

Parts that vary by chance are left out. Two runs of one command differ in times, durations, process ids, addresses and
temporary paths in their results, and in descriptions and timeouts in their inputs. All these texts come from a sandbox.
So the work for a call is limited, and no regular expression backtracks over more than a number or a name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

HEAD: Final = 3072
"""Number of characters that are compared at the beginning of a result."""
TAIL: Final = 1024
"""Number of characters that are compared at the end of a result that is longer than `HEAD + TAIL`."""
MAX_INPUT: Final = 16_384
"""Number of characters of an encoded input that are compared. For a longer input its length is compared, too."""
MAX_CAUSE: Final = 200
"""Number of bytes that are compared of the line that states the cause of an error."""
_DIGEST_BYTES: Final = 8
_MIN_CAUSE_LENGTH: Final = 12
_IRRELEVANT: Final = frozenset(
    {
        *("description", "explanation", "justification", "reasoning", "security_risk", "summary"),
        *("timeout", "timeout_ms", "timeout_sec", "timeout_seconds", "yield_time_ms", "max_output_tokens"),
    }
)
"""Fields of an input that do not change what a call does."""
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,15}")

_MONTH: Final = b"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_ZONE: Final = rb"(?: ?[ap]m)?(?: ?(?:utc|gmt|z|[+-][0-9]{2}:?[0-9]{2})(?!\w))?"
_CLOCK: Final = rb"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?" + _ZONE
_UNIT: Final = b"(?:[num]?s|\xc2\xb5s|m|h|secs?|seconds?|mins?|minutes?|hours?|milliseconds?)"
_SINCE_1970: Final = rb"[5-9][0-9]{8}(?:[0-9]{3}){0,3}(?:\.[0-9]{1,9})?(?!\w)"
"""A Unix time in seconds or smaller units, without its first digit."""
_MASK: Final = b"#"


def _digit_pattern() -> bytes:
    """A pattern of all volatile values that begin with a digit.

    It consists of that digit and alternatives for the rest, because the search for a digit is fast.
    """
    alternatives = (
        rb"[0-9]{3}[-/][0-9]{2}[-/][0-9]{2}(?:[t ]" + _CLOCK + b")?",  # a date, and its time
        rb"[0-9]?:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?" + _ZONE + rb"(?![\w:])",
        rb"[0-9]? " + _MONTH + rb" [0-9]{4}(?: " + _CLOCK + b")?",
        rb"[0-9]{0,9}(?:[.,][0-9]{1,9})? ?" + _UNIT + rb"(?: ?[0-9]{1,9}(?:\.[0-9]{1,9})? ?" + _UNIT + rb"){0,3}(?!\w)",
        rb"(?<=1)" + _SINCE_1970,
        rb"(?<=0)x[0-9a-f]{4,16}(?!\w)",
        rb"(?<=\w\[[0-9])(?:[0-9]{0,6}(?=\]:)|[0-9]{2,6}(?=\] ))",  # a process in a log
    )
    return rb"[0-9](?<![\w.:][0-9])(?:" + b"|".join(alternatives) + b")"


@dataclass(frozen=True, slots=True)
class _Volatile:
    """A kind of volatile value.

    A text is searched for `pattern` only if it contains the text `sign`, which is found much faster.
    """

    sign: bytes
    pattern: re.Pattern[bytes]
    mask: bytes

    @classmethod
    def of(cls, sign: bytes, pattern: bytes, mask: bytes = b"") -> "_Volatile":
        return cls(sign, re.compile(pattern), mask)


_NUMBER: Final = rb"[ :=#(\[]{1,3}[0-9]{1,10}(?:[ /](?:of )?[0-9]{1,6})?"
_NAME: Final = rb"[ :=\"']{1,4}[\w.-]{1,64}"
_VALUES_ANYWHERE: Final = (
    _Volatile.of(b"\x1b", rb"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-z])"),
    _Volatile.of(b"(cached)", rb"\(cached\)", _MASK),
)
_PATHS: Final = (
    _Volatile.of(b"/tmp/", rb"(?:/private|/var)?/tmp/[\w.@%+-]{1,128}"),
    _Volatile.of(b"/var/folders/", rb"/var/folders/[\w.@%+/-]{1,128}"),
)
_VALUES_WITH_NUMBERS: Final = (
    _Volatile.of(b"pid", rb"pid" + _NUMBER),
    _Volatile.of(b"process", rb"process(?: id)?" + _NUMBER),
    _Volatile.of(b" port", rb" port" + _NUMBER),
    _Volatile.of(b"host:", rb"localhost:[0-9]{4,5}"),
    _Volatile.of(b"0.0.", rb"(?:127\.0\.0\.1|0\.0\.0\.0):[0-9]{4,5}"),
    _Volatile.of(b"attempt", rb"attempt" + _NUMBER),
    _Volatile.of(b"retry", rb"retry" + _NUMBER),
    _Volatile.of(b"chunk id", rb"chunk id" + _NAME),
    _Volatile.of(b"request", rb"request[ _-]?id" + _NAME),
    _Volatile.of(b"session ", rb"session(?: id)?" + _NUMBER),
    _Volatile.of(b"token count", rb"token count" + _NUMBER),
)
_DIGITS: Final = re.compile(_digit_pattern())
_UNIX_TIMES: Final = re.compile(rb"1(?<![\w.:]1)" + _SINCE_1970)
_NOT_ONLY_NUMBERS: Final = re.compile(rb"[a-z\[/:-]")
"""If a result has none of these characters, the only pattern of `_DIGITS` that can match is a Unix time."""
_DATES: Final = re.compile(
    _MONTH + rb" [ 0-9]?[0-9](?![0-9])(?:,? [0-9]{4})?(?:[ ,]{1,2}(?:" + _CLOCK + rb"|#)(?: [0-9]{4})?)?"
)
_WEEKDAYS: Final = re.compile(rb"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},? (?=#)")
_HEXADECIMAL: Final = re.compile(
    rb"[0-9a-f](?<!\w[0-9a-f])(?:[0-9a-f]{7}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{6,63})(?!\w)"
)
_GLYPHS: Final = re.compile(rb"(?:\xe2(?:[\xa0-\xa3][\x80-\xbf]|\x97[\x90-\x93]|\x97[\xb4-\xb7]|\x9c[\xa2-\xbd])[ ]?)+")
_LINE_NUMBERS: Final = re.compile(rb"^ *[0-9]{1,7}(?:\t|\xe2\x86\x92|\Z)", re.MULTILINE)
_WRAPPED_RESULT: Final = re.compile(rb"\s*(?:<(?:tool_use_error|error|stdout|stderr)>)?(?:error: (?=exit code))?")
_TEXT_FIELDS: Final = ("output", "text", "error", "message")
_STATUS_TEXT: Final = re.compile(rb"exit code [0-9]{1,3}\s*|\[the command completed with exit code [0-9]{1,3}\.\]\s*")
_LOCATION: Final = re.compile(
    rb"^[^\s:(]{1,200}(?::[0-9#]{1,9}|\([0-9#]{1,9},[0-9#]{1,9}\)){1,2}:? ?|(?<=line )[0-9]{1,9}|(?<=:)[0-9]{1,9}"
)
_REASON: Final = re.compile(
    rb"error|fail|fatal|exception|cannot|can't|could not|not found|no such|denied|unable|invalid|unknown|unexpected"
    rb"|missing|undefined|timed out|not been|must "
)
_TRACEBACK: Final = b"traceback (most recent call last)"
_TO_HEXADECIMAL_CLASS: Final = bytes.maketrans(b"0123456789abcdef", b"h" * 16)
_TO_CHARACTER_CLASSES: Final = bytes.maketrans(b"0123456789abcdef", b"0" * 10 + b"a" * 6)
_TO_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_TOOL_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_FILE_WRITTEN: Final = re.compile(
    r"(?:The file |File created successfully at: )(?P<path>[^\n]{1,512}?)"
    r"(?: has been (?:updated|created)\b[^\n]*|\.?\Z)"
)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def text_digest(text: str) -> str:
    """The digest of a text, of which nothing is left out."""
    return _digest(text.encode("utf-8", "replace"))


def input_digest(tool: str, tool_input: Any, agent: str | None = None) -> str:
    """The digest of a tool and its input, without irrelevant fields: 16 hexadecimal digits.

    It is equal for the inputs `16` and `"16"`, and differs for each sub-agent.
    """
    text = json.dumps([agent, tool, _relevant_fields(tool_input)], sort_keys=True, separators=(",", ":"), default=str)
    if len(text) > MAX_INPUT:
        text = f"{len(text)} {text[:MAX_INPUT]}"
    return _digest(text.encode())


def _relevant_fields(value: Any) -> Any:
    """An input without irrelevant fields. Fields of nested values stay, because they may be data."""
    if not isinstance(value, Mapping):
        return value
    return {name: _plain_value(field) for name, field in value.items() if name not in _IRRELEVANT and field is not None}


def _plain_value(value: Any) -> Any:
    """A value of an input: a whole number if it is the text of one; a text without space around it."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    return int(text) if len(text) <= 16 and _WHOLE_NUMBER.fullmatch(text) else text


def result_digest(result: Any) -> str:
    """The digest of a tool's result, without parts that vary by chance: 16 hexadecimal digits.

    It is equal for the text that the model sees and for the structure that Claude's tools return, if both are complete.
    """
    return _digest(normalised_text(result_text(result)))


def result_text(result: Any) -> str:
    """The text of a result: for a structure, the output in it; for any other value, its JSON."""
    if isinstance(result, str):
        return result
    if result is None:
        return ""
    if isinstance(result, list) and all(isinstance(part, Mapping) for part in result):
        return "\n".join(str(part.get("text", f"[{part.get('type', 'something')}]")) for part in result)
    text = _field_text(result) if isinstance(result, Mapping) else None
    return json.dumps(result, sort_keys=True, default=str) if text is None else text


def _field_text(result: Mapping[str, Any]) -> str | None:
    """The text in the structured result of a tool of Claude or of the Agent Client Protocol; None if there is none."""
    if "stdout" in result:
        outputs = (str(result.get(name) or "").strip() for name in ("stdout", "stderr"))
        return "\n".join(output for output in outputs if output)
    if "structuredPatch" in result and "filePath" in result:
        return f"The file {result['filePath']} has been updated"
    file = result.get("file")
    content = file.get("content") if isinstance(file, Mapping) else result.get("content")
    if isinstance(content, list):
        return result_text(content)
    names = result.get("filenames")
    if not content and isinstance(names, list):
        return "\n".join(map(str, names))
    return next((text for text in (content, *map(result.get, _TEXT_FIELDS)) if isinstance(text, str)), None)


def normalised_text(text: str) -> bytes:
    """A result in lower case, without parts that vary by chance. At most `HEAD + TAIL` of its characters are read."""
    if len(text) > HEAD + TAIL:
        text = f"{text[:HEAD]}\n{text[-TAIL:]}"
    if text.startswith(("The file ", "File created ")) and (written := _FILE_WRITTEN.match(text)):
        text = f"written {written['path']}"
    content = text.encode("utf-8", "replace").lower()
    content = content[_WRAPPED_RESULT.match(content).end() :].rstrip()  # type: ignore[union-attr]  # it matches any text
    for volatile in (*_VALUES_ANYWHERE, *_PATHS) if b"/" in content else _VALUES_ANYWHERE:
        if volatile.sign in content:
            content = volatile.pattern.sub(volatile.mask, content)
    if not text.isascii():
        content = _GLYPHS.sub(b"", content)
    zeros = content.translate(_TO_ZEROS)
    if b"0" in zeros:
        # A search for names of months is slow. It is skipped without a clock time or a year, which are beside them.
        content = _without_numbers(content, has_dates=b"0:00" in zeros or b" 0000" in zeros)
    return content


def _without_numbers(content: bytes, *, has_dates: bool) -> bytes:
    if _LINE_NUMBERS.match(content):
        content = _LINE_NUMBERS.sub(b"", content).rstrip()
    if _NOT_ONLY_NUMBERS.search(content) is None:
        return _UNIX_TIMES.sub(_MASK, content)
    content = _DIGITS.sub(_MASK, content)
    if has_dates:
        content, dates = _DATES.subn(_MASK, content)
        content = _WEEKDAYS.sub(b"", content) if dates else content
    if _may_have_hexadecimal(content):
        content = _HEXADECIMAL.sub(_mask_hexadecimal, content)
    for volatile in _VALUES_WITH_NUMBERS:
        if volatile.sign in content:
            content = volatile.pattern.sub(_MASK, content)
    return content


def _may_have_hexadecimal(content: bytes) -> bool:
    """Whether the content may have a digest or a UUID.

    That needs seven hexadecimal digits in a row, and either a letter beside a decimal digit or groups that end with
    `-`.
    """
    classes = content.translate(_TO_CHARACTER_CLASSES)
    if b"a" not in classes and b"-" not in classes:
        return False
    mixed = b"0a" in classes or b"a0" in classes or b"0000-" in classes or b"aaaa-" in classes
    return mixed and b"hhhhhhh" in content.translate(_TO_HEXADECIMAL_CLASS)


def _mask_hexadecimal(found: "re.Match[bytes]") -> bytes:
    """The mask for a digest, which has letters and digits.

    A match without digits is a word, and one without letters is a number. Both stay unchanged.
    """
    return found[0] if found[0].isdigit() or found[0].isalpha() else _MASK


def cause_digest(result: Any, *, needs_reason: bool = False) -> str | None:
    """The digest of an error's cause, independent of the line of a file; None for a result without any text.

    The cause is the last line of a traceback, else the first line that looks like a reason, else the last one. With
    `needs_reason`, a short last line, such as a count, does not qualify as a cause.
    """
    lines = [line for line in _STATUS_TEXT.sub(b"", normalised_text(result_text(result))).splitlines() if line.strip()]
    if not lines:
        return None
    reason = next((line for line in lines if _REASON.search(line)), None)
    if reason is None and needs_reason and len(lines[-1]) < _MIN_CAUSE_LENGTH:
        return None
    line = lines[-1] if reason is None or any(_TRACEBACK in other for other in lines) else reason
    return _digest(_LOCATION.sub(_MASK, line.strip()[:MAX_CAUSE]))


def tool_label(tool: str) -> str:
    """The name of a tool for a message to an agent. It comes from a sandbox: an invalid name is left out."""
    return tool if _TOOL_NAME.fullmatch(tool) else "the same tool"
