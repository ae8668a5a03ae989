"""Secrets that are numbers: in JSON they may stand without quotes, and be no text."""

import re
from collections.abc import Iterable
from typing import Any, Final

from sandherd_worker.redaction_forms import SHORTEST_ENCODED, SHORTEST_SECRET

_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][-+]?[0-9]{1,2})?")


class SecretNumbers:
    """Knows secrets again that are written as numbers."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = [secret for secret in secrets if len(secret) >= SHORTEST_SECRET and _NUMBER.fullmatch(secret)]
        self._texts: Final = known
        self._equal: Final = frozenset(float(one) for one in known if len(_digits(one)) >= SHORTEST_SECRET)
        self._long: Final = frozenset(float(one) for one in known if len(_digits(one)) >= SHORTEST_ENCODED)

    @property
    def known(self) -> bool:
        """Whether there are any."""
        return bool(self._texts)

    def is_one(self, value: Any) -> bool:
        """Whether this is a number that equals a secret of eight digits or more."""
        return bool(self._long) and _is_number(value) and _float(value) in self._long

    def has_one(self, value: Any) -> bool:
        """Whether this is a number that equals a secret, or has one among its digits."""
        if not self._texts or not _is_number(value):
            return False
        text = str(value)
        return any(one in text for one in self._texts) or _float(value) in self._equal


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: float) -> float | None:
    """As JavaScript reads it, which rounds; None for one that is too large."""
    try:
        return float(value)
    except OverflowError:
        return None


def _digits(number: str) -> str:
    """The digits that count."""
    whole, dot, rest = re.split("[eE]", number.lstrip("+-"))[0].partition(".")
    return (whole + rest.rstrip("0") if dot else whole).lstrip("0")
