"""Limits how often a line about one source is logged, so that a sender of messages can't fill the log. Pure."""

from dataclasses import dataclass
from typing import Final

LINE_SECONDS: Final = 60.0
"""The minimum time between two lines about one source, in seconds."""
MAX_SOURCES: Final = 256
"""Maximum number of sources that are counted separately at a time. All other sources are counted together."""
_OTHERS: Final = ""


@dataclass(slots=True)
class _Source:
    logged_at: float
    count: int = 0
    """Occurrences since the last line."""


class LineLimit:
    """Permits one line per source in `LINE_SECONDS`, and counts the occurrences between two lines."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}

    def add(self, source: str, now: float) -> int:
        """Count an occurrence at `now`, in seconds. Returns the number of occurrences to log; 0 permits no line."""
        name = self._name(source, now)
        entry = self._sources.get(name)
        if entry is None:
            self._sources[name] = _Source(now)
            return 1
        entry.count += 1
        if now - entry.logged_at < LINE_SECONDS:
            return 0
        count, entry.count, entry.logged_at = entry.count, 0, now
        return count

    def _name(self, source: str, now: float) -> str:
        """The source, or `_OTHERS` if there are too many."""
        if source not in self._sources and len(self._sources) >= MAX_SOURCES:
            recent = {name: seen for name, seen in self._sources.items() if now - seen.logged_at < LINE_SECONDS}
            self._sources = recent
        return source if source in self._sources or len(self._sources) < MAX_SOURCES else _OTHERS
