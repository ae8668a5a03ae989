"""How often one cause may be logged: a sender of messages must not fill the log. Pure."""

from dataclasses import dataclass
from typing import Final

LINE_SECONDS: Final = 60.0
"""Between two lines about one source."""
MAX_SOURCES: Final = 256
"""Sources that are counted separately at a time; those beyond share one line."""
_OTHERS: Final = ""


@dataclass(slots=True)
class _Source:
    logged_at: float
    count: int = 0
    """Occurrences since the last line."""


class LineLimit:
    """Permits one line per source and `LINE_SECONDS`, and counts what occurs meanwhile."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}

    def add(self, source: str, now: float) -> int:
        """Count an occurrence. Returns how many the line due now is about, or 0: no line. `now` is in seconds."""
        name = self._name(source, now)
        found = self._sources.get(name)
        if found is None:
            self._sources[name] = _Source(now)
            return 1
        found.count += 1
        if now - found.logged_at < LINE_SECONDS:
            return 0
        count, found.count, found.logged_at = found.count, 0, now
        return count

    def _name(self, source: str, now: float) -> str:
        """The source, or `_OTHERS` if there are too many."""
        if source not in self._sources and len(self._sources) >= MAX_SOURCES:
            recent = {name: seen for name, seen in self._sources.items() if now - seen.logged_at < LINE_SECONDS}
            self._sources = recent
        return source if source in self._sources or len(self._sources) < MAX_SOURCES else _OTHERS
