"""Parses the needed part of DNS messages: the queried name, and the addresses in a reply. Pure.

Messages are untrusted. For a message that can't be parsed, a function returns None, False or what precedes the error,
and raises no exception.
"""

from __future__ import annotations

import struct

from sandherd_network.policy import Address, unpack_address

TYPE_CHECKING = False  # `typing` is not loaded at run time, so that this program starts faster
if TYPE_CHECKING:
    from typing import Final

HEADER: Final = 12
"""The length of a message's header in bytes."""
_IS_REPLY, _RECURSION_AVAILABLE = 0x8000, 0x0080
_REPEATED_FLAGS: Final = 0x7900
"""The flags of a query that its reply repeats: the opcode, and recursion desired."""
_OPCODE: Final = 0x7800
_TRANSFERS: Final = (251, 252)
"""The record types IXFR and AXFR."""
_CLASS_INTERNET: Final = 1
_OPT: Final = b"\0\0\x29"
"""The beginning of an OPT record: the name of the root, and the type."""
_MAX_NAME_LENGTH: Final = 253
_MAX_POINTERS: Final = 32
_A, _AAAA = 1, 28
SERVER_FAILURE, NO_SUCH_NAME = 2, 3


class DnsQuestion:
    """A question of a message. `name` is in lower case, without the trailing dot; `end` is the offset after it."""

    def __init__(self, name: str, end: int) -> None:
        self.name, self.end = name, end


class DnsAddress:
    """An address, and its TTL in seconds."""

    def __init__(self, address: Address, ttl: int) -> None:
        self.address, self.ttl = address, ttl


def parse_question(message: bytes) -> DnsQuestion | None:
    """The question of a message; None unless the message has exactly one."""
    try:
        if struct.unpack_from("!H", message, 4)[0] != 1:
            return None
        name, end = _parse_name(message, HEADER)
        return DnsQuestion(name, end + 4) if end + 4 <= len(message) else None
    except (struct.error, IndexError, ValueError):
        return None


def is_standard_query(message: bytes) -> bool:
    """Whether a message is a standard query (RFC 1035) for one internet name, with at most one OPT record (RFC 6891).

    False for other operations (UPDATE, NOTIFY), zone transfers, and messages with any further records.
    """
    question = parse_question(message)
    if question is None:
        return False
    flags, _, *counts = struct.unpack_from("!HHHHH", message, 2)
    record_type, record_class = struct.unpack_from("!HH", message, question.end - 4)
    if flags & (_IS_REPLY | _OPCODE) or record_type in _TRANSFERS or record_class != _CLASS_INTERNET:
        return False
    return _query_end(message, question, counts) == len(message)


def _query_end(message: bytes, question: DnsQuestion, counts: list[int]) -> int | None:
    """The end offset of a query with these counts of further records; None if it has any other record than one OPT.

    An OPT record has 11 bytes and its data, whose length is in the last 2 of them.
    """
    if counts == [0, 0, 0]:
        return question.end
    if counts != [0, 0, 1] or message[question.end : question.end + 3] != _OPT or len(message) < question.end + 11:
        return None
    return question.end + 11 + int(struct.unpack_from("!H", message, question.end + 9)[0])


def parse_addresses(message: bytes) -> list[DnsAddress]:
    """The addresses in the answer section of a message, up to the first record that can't be parsed."""
    addresses: list[DnsAddress] = []
    try:
        questions, answers = struct.unpack_from("!HH", message, 4)
        offset = HEADER
        for _ in range(questions):
            offset = _parse_name(message, offset)[1] + 4
        for _ in range(answers):
            offset = _parse_name(message, offset)[1]
            record_type, _, ttl, length = struct.unpack_from("!HHIH", message, offset)
            offset += 10
            if record_type in {_A, _AAAA} and (address := unpack_address(message[offset : offset + length])):
                addresses.append(DnsAddress(address, ttl))
            offset += length
    except (struct.error, IndexError, ValueError):
        return addresses
    return addresses


def error_reply(message: bytes, question: DnsQuestion, code: int) -> bytes:
    """A reply to `message`, a query with this question, with an error code."""
    flags = struct.unpack_from("!H", message, 2)[0] & _REPEATED_FLAGS | _IS_REPLY | _RECURSION_AVAILABLE | code
    return message[:2] + struct.pack("!HHHHH", flags, 1, 0, 0, 0) + message[HEADER : question.end]


def _parse_name(message: bytes, offset: int) -> tuple[str, int]:
    """A name, and the offset after it. Raises `ValueError`, `IndexError`."""
    labels: list[str] = []
    end_offset = None
    for _ in range(128 + _MAX_POINTERS):
        size = message[offset]
        if size == 0:
            return ".".join(labels).lower(), (offset + 1 if end_offset is None else end_offset)
        if size & 0xC0 == 0xC0:  # a pointer (RFC 1035, 4.1.4)
            end_offset = offset + 2 if end_offset is None else end_offset
            offset = (size & 0x3F) << 8 | message[offset + 1]
            continue
        if size & 0xC0 or offset + 1 + size > len(message):
            raise ValueError("not a label")
        labels.append(message[offset + 1 : offset + 1 + size].decode("latin-1"))
        offset += 1 + size
        if sum(map(len, labels)) > _MAX_NAME_LENGTH:
            raise ValueError("a name that is too long")
    raise ValueError("a name without an end")
