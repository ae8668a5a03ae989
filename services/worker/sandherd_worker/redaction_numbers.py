"""Secrets that are numbers: an event may have them as numbers and not as texts, in JSON without quotes."""

import re
from collections.abc import Iterable
from typing import Any, Final

from sandherd_worker.redaction_forms import SHORTEST_ENCODED, SHORTEST_SECRET

_NUMBER_TEXT: Final = re.compile(r"[-+]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][-+]?[0-9]{1,2})?")


class SecretNumbers:
    """Recognizes secrets in numbers."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = [secret for secret in secrets if len(secret) >= SHORTEST_SECRET and _NUMBER_TEXT.fullmatch(secret)]
        self._secrets: Final = known
        self._values: Final = frozenset(float(one) for one in known if len(_significant_digits(one)) >= SHORTEST_SECRET)
        self._long_values: Final = frozenset(
            float(one) for one in known if len(_significant_digits(one)) >= SHORTEST_ENCODED
        )

    @property
    def known(self) -> bool:
        """Whether any secret is a number."""
        return bool(self._secrets)

    def is_one(self, value: Any) -> bool:
        """Whether `value` is a number that equals a secret of eight or more digits."""
        return bool(self._long_values) and _is_number(value) and _float(value) in self._long_values

    def has_one(self, value: Any) -> bool:
        """Whether `value` is a number that equals a secret, or whose digits contain one."""
        if not self._secrets or not _is_number(value):
            return False
        text = str(value)
        return any(one in text for one in self._secrets) or _float(value) in self._values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: float) -> float | None:
    """The number rounded to a float, as JavaScript reads it; None if it is too large."""
    try:
        return float(value)
    except OverflowError:
        return None


def _significant_digits(number: str) -> str:
    """The digits without sign, exponent, leading zeros, and zeros at the end of the fraction."""
    whole, dot, rest = re.split("[eE]", number.lstrip("+-"))[0].partition(".")
    return (whole + rest.rstrip("0") if dot else whole).lstrip("0")
