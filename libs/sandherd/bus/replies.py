"""Reading what a service answers."""

from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sandherd.bus.errors import BusError, RefusedError
from sandherd.contracts.requests import Reply

AnswerT = TypeVar("AnswerT", bound=BaseModel)


def read_reply(document: bytes, answer: type[AnswerT]) -> AnswerT:
    """What stands in a reply. Raises `RefusedError` for a refusal and `BusError` for a reply that is none."""
    try:
        # A service one version newer may say more than we know, also of what is strict where it is asked for.
        reply: Reply[AnswerT] = _reply_of(answer).model_validate_json(document, extra="ignore")
    except ValidationError as error:
        raise BusError(f"an answer that is none: {error.errors(include_input=False)[0]['msg']}") from None
    if reply.error is not None:
        raise RefusedError(reply.error)
    if reply.ok is None:
        raise BusError("an answer that says nothing")
    return reply.ok


@cache
def _reply_of(answer: type[BaseModel]) -> type[Reply[Any]]:
    return Reply[answer]  # type: ignore[valid-type]  # a model chosen at run time
