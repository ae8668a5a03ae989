"""Which events are published as their models are, since no value in them can be too large, too deep or not storable.

That is found from the JSON document, which is written anyway, and not in each value.
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
"""How much longer Python's JSON of a value may be than ours: it has `\\u007f` for one character."""
_LONGEST_TEXTS: Final = WIDE.string
_LONGEST_WORTHWHILE: Final = 16 * 1024
"""The JSON of a longer text takes as long to search as the text itself, and longer if much in it is escaped."""
_LONGEST_STRUCTURES: Final = WIDE.structure // _MAX_GROWTH
_MAX_BRACKETS: Final = 100
"""As many as the deepest structure may have levels (`emitter`); those in texts count, too."""
_ESCAPED: Final = re.compile(rb"\\u")  # `in` takes twice as long, and seven times in a text with many quotes
_SCALARS: Final = (str, int, float, bool, datetime, NoneType)
ARTIFACTS: Final = "artifacts"


def has_long_text(values: Mapping[str, Any]) -> bool:
    """Whether one of these fields is a text that is searched in less time than the document."""
    for value in values.values():  # noqa: SIM110  # `any` takes twice as long
        if type(value) is str and len(value) > _LONGEST_WORTHWHILE:
            return True
    return False


def is_plain(model: type[EventData], document: bytes) -> bool:
    """Whether an event without artifacts, with this document, needs no change but redaction. False if it is unknown."""
    longest = _longest(model)
    if len(document) > longest or _ESCAPED.search(document) is not None:  # a NUL, perhaps
        return False
    return longest != _LONGEST_STRUCTURES or document.count(b"{") + document.count(b"[") <= _MAX_BRACKETS


@cache
def _longest(model: type[EventData]) -> int:
    """The longest document in which all values are certainly within their limits."""
    annotations = [info.annotation for name, info in model.model_fields.items() if name != ARTIFACTS]
    if _all_of(annotations, structures=False):
        return _LONGEST_TEXTS
    return _LONGEST_STRUCTURES if _all_of(annotations, structures=True) else 0


def _all_of(annotations: Iterable[Any], *, structures: bool) -> bool:
    """Whether all are texts, numbers and times, or structures of them: not of models, which are written in part."""
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
