"""Health of a service: one check for each part that it depends on, with the reason if the part is not healthy."""

from collections.abc import Callable
from typing import Final

Check = Callable[[], str | None]
"""Returns None if the part is healthy, else a short description of the problem."""


WARNING_PREFIX: Final = "look:"
"""The text before each warning in the body of `/readyz`. A warning does not make the service unready."""


class Health:
    """The checks of the parts that a service's readiness depends on, and the checks that result in warnings."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._warnings: dict[str, Check] = {}
        self.details: dict[str, str] = {}
        """Details of parts, such as an address, by the name of the part."""

    def add(self, name: str, check: Check, *, detail: str | None = None) -> None:
        """Add a part that readiness depends on. `detail` is shown with the part, such as its address."""
        self._checks[name] = check
        if detail is not None:
            self.details[name] = detail

    def add_warning(self, name: str, check: Check) -> None:
        """Add a check of a part that does not affect readiness. The text that `check` returns is shown as a warning."""
        self._warnings[name] = check

    def warnings(self) -> dict[str, str]:
        """The warnings, by the name of their part; empty if there are none."""
        texts = {name: check() for name, check in list(self._warnings.items())}
        return {name: text for name, text in texts.items() if text}

    def problems(self) -> dict[str, str]:
        """The problems, by the name of their part; empty if all parts are healthy."""
        # `list` copies the items, because the metrics exporter calls this from its own thread.
        results = {name: check() for name, check in list(self._checks.items())}
        return {name: problem for name, problem in results.items() if problem}

    def parts(self) -> dict[str, str]:
        """Every part that readiness depends on, with `ok` or its problem."""
        return {name: check() or "ok" for name, check in self._checks.items()}
