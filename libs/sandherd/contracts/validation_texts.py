"""Texts for validation errors of pydantic: each is a plain sentence about the field, without its name."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sandherd.contracts.patterns import rule_of

Context = Mapping[str, Any]

_VALUE_ERROR: Final = "Value error, "
_MAPPING: Final = "has to be a mapping of names to values"
PLAIN: Final = {
    "missing": "is required",
    "extra_forbidden": "is not a known field",
    "int_parsing": "has to be a whole number",
    "int_parsing_size": "has to be a smaller whole number",
    "int_type": "has to be a whole number",
    "int_from_float": "has to be a whole number",
    "float_parsing": "has to be a number",
    "float_type": "has to be a number",
    "finite_number": "has to be a finite number",
    "bool_parsing": "has to be true or false",
    "bool_type": "has to be true or false",
    "string_type": "has to be text",
    "string_unicode": "has to be valid UTF-8",
    "list_type": "has to be a list",
    "tuple_type": "has to be a list",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "none_required": "has to be empty",
    "path_type": "has to be a path",
    "datetime_type": "has to be a time, such as 2026-11-20T12:00:00Z",
    "datetime_parsing": "has to be a time, such as 2026-11-20T12:00:00Z",
    "datetime_from_date_parsing": "has to be a time, such as 2026-11-20T12:00:00Z",
    "timezone_aware": "has to have an offset from UTC, such as 2026-11-20T12:00:00Z",
}
"""The text for each type of error whose text is always the same. It continues a sentence about the field."""
_WITH_CONTEXT: Final[Mapping[str, Callable[[Context], str]]] = {
    "string_pattern_mismatch": lambda context: f"has to be {rule_of(context['pattern'])}",
    "literal_error": lambda context: f"has to be {context['expected']}",
    "enum": lambda context: f"has to be {context['expected']}",
    "union_tag_not_found": lambda context: f"needs a {str(context['discriminator']).strip(chr(39))}",
    "greater_than": lambda context: f"has to be greater than {context['gt']}",
    "greater_than_equal": lambda context: f"has to be at least {context['ge']}",
    "less_than": lambda context: f"has to be less than {context['lt']}",
    "less_than_equal": lambda context: f"has to be at most {context['le']}",
    "string_too_short": lambda context: f"has to have at least {_with_count(context['min_length'], 'character')}",
    "string_too_long": lambda context: f"has to have at most {_with_count(context['max_length'], 'character')}",
    "too_short": lambda context: f"has to have at least {_with_count(context['min_length'], 'item')}",
    "too_long": lambda context: f"has to have at most {_with_count(context['max_length'], 'item')}",
}


def validation_text(kind: str, message: str, context: Context) -> str:
    """The sentence for an error of pydantic. It never contains the input's value."""
    if kind == "union_tag_invalid":  # pydantic's message contains the value
        return f"its kind is none of {context['expected_tags']}"
    if kind in {"value_error", "assertion_error"}:
        return message.removeprefix(_VALUE_ERROR)
    if kind in PLAIN:
        return f"it {PLAIN[kind]}"
    if kind in _WITH_CONTEXT:
        return f"it {_WITH_CONTEXT[kind](context)}"
    return message.replace("Input should ", "it has to ", 1).replace("String should ", "it has to ", 1)


def _with_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
