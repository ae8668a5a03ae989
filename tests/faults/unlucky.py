"""Which sandboxes are unlucky, and how: by their names, which no chance gives twice and no killed spawner changes.

Names end in letters of Crockford's base 32 that are as good as random; of 1,024 endings about 51 are 5 %.
"""

from fnmatch import fnmatchcase
from typing import Final

NEVER_BEGINS: Final = ("*0",)
"""3 %: the worker ends before it has published anything."""
REFUSED: Final = ("*[0-9abcdefgh]1",)
"""2 %: the runtime will never make it."""
LOST: Final = ("*2", "*[0-9abcdefgh]3")
"""5 %: the worker is killed while its agent works."""
BUSY: Final = ("*4",)
"""3 %: the runtime does not make it at the first time of asking; that is no failure of the attempt."""


def is_one_of(sandbox: str, endings: tuple[str, ...]) -> bool:
    """Whether this sandbox has that kind of luck."""
    return any(fnmatchcase(sandbox, ending) for ending in endings)


def comes_to(sandbox: str) -> str | None:
    """The error type that an attempt in this sandbox comes to whatever its agent does, or None."""
    if is_one_of(sandbox, REFUSED):
        return "runtime_refused"
    return "worker_lost" if is_one_of(sandbox, (*NEVER_BEGINS, *LOST)) else None
