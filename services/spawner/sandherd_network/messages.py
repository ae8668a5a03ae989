"""What of a DNS message matters here: the name that is asked for, and the addresses in an answer. Pure.

Both come from strangers. What can't be read is None or nothing, never an exception.
"""

import struct
from dataclasses import dataclass
from typing import Final

from sandherd_network.policy import Address, literal_bytes

HEADER: Final = 12
_ANSWER, _RECURSION = 0x8000, 0x0080
_KEPT: Final = 0x7900
"""Of a question's flags, what its answer repeats: the kind of question, and that recursion is wanted."""
_OPERATION: Final = 0x7800
_TRANSFERS: Final = (251, 252)
"""IXFR, AXFR."""
_INTERNET: Final = 1
_OPT: Final = b"\0\0\x29"
"""The name of the root, and the type."""
_LONGEST_NAME: Final = 253
_MOST_JUMPS: Final = 32
_A, _AAAA = 1, 28
SERVER_FAILURE, NO_SUCH_NAME = 2, 3


@dataclass(frozen=True)
class Question:
    """One question for one name, in lower case without the last dot."""

    name: str
    end: int
    """Where in the message it ends."""


@dataclass(frozen=True)
class Found:
    """An address, and for how many seconds it is good."""

    address: Address
    seconds: int


def question_of(message: bytes) -> Question | None:
    """The one question in a message."""
    try:
        if struct.unpack_from("!H", message, 4)[0] != 1:
            return None
        name, end = _name(message, HEADER)
        return Question(name, end + 4) if end + 4 <= len(message) else None
    except (struct.error, IndexError, ValueError):
        return None


def is_question(message: bytes) -> bool:
    """Whether it is a standard query (RFC 1035) for one name of the internet, with one OPT record at most (RFC 6891).

    Other operations (UPDATE, NOTIFY), zone transfers, and messages that carry anything more are none.
    """
    question = question_of(message)
    if question is None:
        return False
    flags, _, *counts = struct.unpack_from("!HHHHH", message, 2)
    kind, family = struct.unpack_from("!HH", message, question.end - 4)
    if flags & (_ANSWER | _OPERATION) or kind in _TRANSFERS or family != _INTERNET:
        return False
    return _end(message, question, counts) == len(message)


def _end(message: bytes, question: Question, counts: list[int]) -> int | None:
    """Where a query with these numbers of further records ends; None if it has others than one OPT."""
    if counts == [0, 0, 0]:
        return question.end
    if counts != [0, 0, 1] or message[question.end : question.end + 3] != _OPT or len(message) < question.end + 11:
        return None
    return question.end + 11 + int(struct.unpack_from("!H", message, question.end + 9)[0])


def addresses_of(message: bytes) -> list[Found]:
    """The addresses in the answer section."""
    found: list[Found] = []
    try:
        questions, answers = struct.unpack_from("!HH", message, 4)
        place = HEADER
        for _ in range(questions):
            place = _name(message, place)[1] + 4
        for _ in range(answers):
            place = _name(message, place)[1]
            kind, _, seconds, length = struct.unpack_from("!HHIH", message, place)
            place += 10
            if kind in {_A, _AAAA} and (address := literal_bytes(message[place : place + length])):
                found.append(Found(address, seconds))
            place += length
    except (struct.error, IndexError, ValueError):
        return found
    return found


def failure(message: bytes, question: Question, code: int) -> bytes:
    """The answer that there is none."""
    flags = struct.unpack_from("!H", message, 2)[0] & _KEPT | _ANSWER | _RECURSION | code
    return message[:2] + struct.pack("!HHHHH", flags, 1, 0, 0, 0) + message[HEADER : question.end]


def _name(message: bytes, place: int) -> tuple[str, int]:
    """A name, and where what follows it begins. Raises `ValueError`, `IndexError`."""
    labels: list[str] = []
    after = None
    for _ in range(128 + _MOST_JUMPS):
        size = message[place]
        if size == 0:
            return ".".join(labels).lower(), (place + 1 if after is None else after)
        if size & 0xC0 == 0xC0:  # a pointer (RFC 1035, 4.1.4)
            after = place + 2 if after is None else after
            place = (size & 0x3F) << 8 | message[place + 1]
            continue
        if size & 0xC0 or place + 1 + size > len(message):
            raise ValueError("not a label")
        labels.append(message[place + 1 : place + 1 + size].decode("latin-1"))
        place += 1 + size
        if sum(map(len, labels)) > _LONGEST_NAME:
            raise ValueError("a name that is too long")
    raise ValueError("a name without an end")
