"""What is known of a record, for decisions about many of them."""

from dataclasses import dataclass
from typing import Generic, TypeVar

ViewT_co = TypeVar("ViewT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Known(Generic[ViewT_co]):
    """What is known of one record: its view, and the revision that says so.

    `unsaid` is whether it has events that were written and not published.
    """

    revision: int
    view: ViewT_co
    unsaid: bool
    alias: str = ""
    """What it is known by outside of the bucket: its name, as a rule."""
    size: int = 0
    """Bytes of the record as it is stored."""
