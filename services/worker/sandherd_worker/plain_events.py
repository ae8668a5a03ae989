"""Finds events that are published unchanged: no value in them can be too large, too deep or not storable.

This is decided from the JSON document, which is written anyway, and not from each value.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from sandherd.contracts.events import EventData
from sandherd_worker.truncation import WIDE

_MAX_GROWTH: Final = 6
"""How many times as long as the document Python's JSON of a value may be: it has `\\u007f` for one character."""
_MAX_BYTES_OF_TEXTS: Final = WIDE.string
_MAX_SHORT_TEXT: Final = 16 * 1024
"""In characters. A longer text's JSON takes as long to search as the text, or longer if it has many escapes."""
_MAX_BYTES_OF_STRUCTURES: Final = WIDE.structure // _MAX_GROWTH
_MAX_BRACKETS: Final = 100
"""The maximum depth of a structure (`emitter`). Brackets in texts are counted as well."""
_ESCAPED_CHARACTER: Final = re.compile(rb"\\u")  # `in` takes twice as long, and seven times in a text with many quotes
_SCALARS: Final = (str, int, float, bool, datetime, NoneType)
ARTIFACTS: Final = "artifacts"


def has_long_text(values: Mapping[str, Any]) -> bool:
    """Whether one of these fields is a long text, which is searched faster by itself than within the document."""
    for value in values.values():  # noqa: SIM110  # `any` takes twice as long
        if type(value) is str and len(value) > _MAX_SHORT_TEXT:
            return True
    return False


def is_plain(model: type[EventData], document: bytes) -> bool:
    """Whether an event without artifacts needs no change except redaction. False if its document does not show that."""
    max_bytes = _max_plain_bytes(model)
    if (
        len(document) > max_bytes or _ESCAPED_CHARACTER.search(document) is not None
    ):  # it may be an escaped NUL, which can't be stored
        return False
    return max_bytes != _MAX_BYTES_OF_STRUCTURES or document.count(b"{") + document.count(b"[") <= _MAX_BRACKETS


@cache
def _max_plain_bytes(model: type[EventData]) -> int:
    """The maximum size, in bytes, of a document whose values are certainly within their limits."""
    annotations = [info.annotation for name, info in model.model_fields.items() if name != ARTIFACTS]
    if _all_of(annotations, structures=False):
        return _MAX_BYTES_OF_TEXTS
    return _MAX_BYTES_OF_STRUCTURES if _all_of(annotations, structures=True) else 0


def _all_of(annotations: Iterable[Any], *, structures: bool) -> bool:
    """Whether all are scalars or, with `structures`, lists and dicts of them; not models, which may be shortened."""
    return all(_is_plain(annotation, structures=structures) for annotation in annotations)


def _is_plain(annotation: Any, *, structures: bool) -> bool:
    origin = get_origin(annotation)
    if origin is Literal or annotation in _SCALARS:
        return True
    if origin is Annotated:
        return _is_plain(get_args(annotation)[0], structures=structures)
    if origin in {Union, UnionType}:
        return _all_of(get_args(annotation), structures=structures)
    if origin in {dict, list}:
        return structures and _all_of(get_args(annotation), structures=True)
    return structures and annotation is Any
