"""Health of a service: one check for each part that it depends on, with the reason if the part is not healthy."""

from collections.abc import Callable
from typing import Final

Check = Callable[[], str | None]
"""Returns None if healthy, else a short description of the problem."""


REMARK: Final = "look:"
"""Prefix in `/readyz` of a warning: it should be checked, but does not make the service unready."""


class Health:
    """The parts of a service that its readiness depends on, and its warnings."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._remarks: dict[str, Check] = {}
        self.details: dict[str, str] = {}

    def add(self, name: str, check: Check, *, detail: str | None = None) -> None:
        """Add a part to readiness. `detail` is what the part is, such as an address."""
        self._checks[name] = check
        if detail is not None:
            self.details[name] = detail

    def remark_on(self, name: str, check: Check) -> None:
        """Add a warning, shown whenever `check` returns a text; it does not affect readiness."""
        self._remarks[name] = check

    def remarks(self) -> dict[str, str]:
        """The warnings by part; empty if there are none."""
        found = {name: check() for name, check in list(self._remarks.items())}
        return {name: text for name, text in found.items() if text}

    def problems(self) -> dict[str, str]:
        """The problems by part; empty if all are healthy."""
        # A copy: the metrics exporter calls this from its own thread.
        found = {name: check() for name, check in list(self._checks.items())}
        return {name: problem for name, problem in found.items() if problem}

    def parts(self) -> dict[str, str]:
        """Every part, with `ok` or its problem."""
        return {name: check() or "ok" for name, check in self._checks.items()}
