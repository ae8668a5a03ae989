"""Reads an answer as its requester does."""

from typing import Any

from sandherd.bus.replies import read_reply
from sandherd.contracts.requests import Reply
from sandherd.service.encoded_answer import EncodedAnswer, encode_reply


def read_answer(answer: Any) -> Any:
    """The model that the requester gets; an answer that is a model already is returned unchanged."""
    if not isinstance(answer, EncodedAnswer):
        return answer
    return read_reply(encode_reply(Reply[Any](ok=answer)), type(answer.answer))
