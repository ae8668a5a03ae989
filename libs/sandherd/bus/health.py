"""Whether a service is well: each part it rests on is asked, and one that is not well says why."""

from collections.abc import Callable
from typing import Final

Check = Callable[[], str | None]
"""Returns None when all is well, else what is wrong, in a few words."""


REMARK: Final = "look:"
"""Stands in `/readyz` before what does not make a service unready, and is worth a look all the same."""


class Health:
    """The parts of a service that readiness rests on."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._remarks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        """From now on, this part counts."""
        self._checks[name] = check

    def remark_on(self, name: str, look: Check) -> None:
        """From now on, this is worth a look whenever it says something; the service works all the same."""
        self._remarks[name] = look

    def remarks(self) -> dict[str, str]:
        """What is worth a look, by part; empty when nothing is."""
        found = {name: look() for name, look in list(self._remarks.items())}
        return {name: text for name, text in found.items() if text}

    def problems(self) -> dict[str, str]:
        """What is wrong, by part; empty when all is well."""
        # A copy: whoever exports metrics asks from a thread of its own.
        found = {name: check() for name, check in list(self._checks.items())}
        return {name: problem for name, problem in found.items() if problem}

    def parts(self) -> dict[str, str]:
        """Every part, with `ok` or what is wrong."""
        return {name: check() or "ok" for name, check in self._checks.items()}
