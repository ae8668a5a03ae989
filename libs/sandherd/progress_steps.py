"""How a long operation reports what it does at present."""

from collections.abc import Callable

OnStep = Callable[[str], None]
"""Is given each step when it begins, in words for users; an empty one while another program shows its progress."""


def ignore_step(_step: str) -> None:
    """Ignores the steps."""
