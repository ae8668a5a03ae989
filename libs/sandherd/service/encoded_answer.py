"""A reply that contains JSON which the service has as text already, and need not parse to send it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

AnswerT = TypeVar("AnswerT", bound=BaseModel)


@dataclass(frozen=True)
class EncodedAnswer(Generic[AnswerT]):
    """The `ok` of a reply, of which one list is encoded already: parsing and writing it would take most of the time."""

    answer: AnswerT
    """The answer with the list `field` empty."""
    field: str
    items: Sequence[bytes]
    """The items of that list, each as JSON."""

    def to_json(self) -> bytes:
        """The answer as JSON, without fields that are None. Raises `ValueError` if its list is missing or not empty."""
        # In JSON, a text that contains this has a backslash before its second quotation mark.
        opening = f'"{self.field}":['.encode()
        head, found, tail = self.answer.model_dump_json(exclude_none=True).encode().partition(opening)
        if not found or not tail.startswith(b"]"):
            raise ValueError(f"{type(self.answer).__name__} has no empty list {self.field}")
        return b"".join((head, opening, b",".join(self.items), tail))


AnyAnswer = BaseModel | EncodedAnswer[Any]
"""What a handler of requests may return."""


def encode_reply(reply: Any) -> bytes:
    """A reply as JSON, without fields that are None."""
    if isinstance(reply.ok, EncodedAnswer):
        return b'{"ok":%b}' % reply.ok.to_json()
    document: str = reply.model_dump_json(exclude_none=True)
    return document.encode()
