"""A program and its arguments, as a list: a text would be split into its letters."""

from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

_REMEDY: Final = 'write ["sh", "-c", "a command of the shell"], or ["program", "argument"]'


def argument_list(argv: Any, *, remedy: str = _REMEDY) -> list[str]:
    """The arguments. Raises `HerdError` (`invalid_field`) unless they are a list, or another sequence, of strings."""
    is_sequence = hasattr(argv, "__iter__") and not isinstance(argv, (str, bytes, bytearray, dict))
    found = list(argv) if is_sequence else []
    if not is_sequence or not all(isinstance(argument, str) for argument in found):
        raise HerdError.of(Code.INVALID_FIELD, "argv has to be a list of strings", field="argv", remedy=remedy)
    return found
