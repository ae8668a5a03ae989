"""What is known of a record, for decisions about many of them."""

from dataclasses import dataclass
from typing import Generic, TypeVar

ViewT = TypeVar("ViewT")


@dataclass(frozen=True, slots=True)
class Known(Generic[ViewT]):
    """What is known of one record: its view, the revision that says so, and whether it has unpublished events."""

    revision: int
    view: ViewT
    unsaid: bool
