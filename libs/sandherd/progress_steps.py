"""The callback by which a long operation reports its current step."""

from collections.abc import Callable

OnStep = Callable[[str], None]
"""Called when a step begins, with a text for users. The text is empty while another program shows its progress."""


def ignore_step(_step: str) -> None:
    """An `OnStep` that shows nothing."""
