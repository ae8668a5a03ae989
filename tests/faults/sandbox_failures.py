"""Decides by name which sandboxes fail, and how: names are unique, and a killed spawner does not change them.

Names end in letters of Crockford's base 32 that are practically random; of 1,024 endings about 51 are 5 %.
"""

from fnmatch import fnmatchcase
from typing import Final

NEVER_BEGINS: Final = ("*0",)
"""3 %: the worker ends before it has published an event."""
REFUSED: Final = ("*[0-9abcdefgh]1",)
"""2 %: the runtime always refuses it."""
LOST: Final = ("*2", "*[0-9abcdefgh]3")
"""5 %: the worker is killed while its agent works."""
BUSY: Final = ("*4",)
"""3 %: the runtime refuses the first request; that is no failure of the attempt."""


def is_one_of(sandbox: str, endings: tuple[str, ...]) -> bool:
    """Whether this sandbox has this kind of failure."""
    return any(fnmatchcase(sandbox, ending) for ending in endings)


def certain_error(sandbox: str) -> str | None:
    """The error type with which an attempt in this sandbox ends in any case, or None."""
    if is_one_of(sandbox, REFUSED):
        return "runtime_refused"
    return "worker_lost" if is_one_of(sandbox, (*NEVER_BEGINS, *LOST)) else None
