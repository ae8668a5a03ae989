"""Checks that a program and its arguments are a list. A string would be read as a list of its characters."""

from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

_REMEDY: Final = 'write ["sh", "-c", "a command of the shell"], or ["program", "argument"]'


def argument_list(argv: Any, *, remedy: str = _REMEDY) -> list[str]:
    """The arguments. Raises `HerdError` (`invalid_field`) unless they are a list, or another sequence, of strings."""
    is_sequence = hasattr(argv, "__iter__") and not isinstance(argv, (str, bytes, bytearray, dict))
    arguments = list(argv) if is_sequence else []
    other = next((argument for argument in arguments if not isinstance(argument, str)), None)
    if not is_sequence or other is not None or None in arguments:
        raise HerdError.of(Code.INVALID_FIELD, _message(other), field="argv", remedy=remedy)
    return arguments


def _message(invalid: Any) -> str:
    """The text of the error. A number or `true` must be in quotes, because YAML reads it as a value of another type."""
    text = "argv has to be a list of strings"
    if isinstance(invalid, (bool, int, float)):
        value_text = str(invalid).lower()[:40]
        return f'{text}: put {value_text} in quotes, as in "{value_text}"'
    return text
