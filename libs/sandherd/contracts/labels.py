"""Labels of tasks: keys and values that users choose, to find tasks by. Their syntax is that of Kubernetes."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints

from sandherd.contracts.patterns import explained

MAX_LABELS: Final = 32
_NAME: Final = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_DNS: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
LABEL_KEY_PATTERN: Final = explained(
    rf"^({_DNS}(\.{_DNS}){{0,7}}/)?{_NAME}$",
    "a label's key: 1 to 63 letters, digits, dashes, underscores or dots, starting and ending with a letter or digit",
)
LABEL_VALUE_PATTERN: Final = explained(
    rf"^({_NAME})?$",
    "a label's value: up to 63 letters, digits, dashes, underscores or dots, with a letter or digit at both ends",
)

RESERVED_PREFIX: Final = "sandherd/"
"""The prefix of keys that only Sandherd sets."""
BATCH_LABEL: Final = "sandherd/batch"
"""The batch that a task was submitted in: the same value for all its tasks."""
NAME_LABEL: Final = "sandherd/name"
"""The task's name in the file from which it was submitted."""
_RESERVED_LABELS: Final = frozenset({BATCH_LABEL, NAME_LABEL})


def _without_unknown_reserved(labels: dict[str, str]) -> dict[str, str]:
    unknown = sorted(key for key in labels if key.startswith(RESERVED_PREFIX) and key not in _RESERVED_LABELS)
    if unknown:
        raise ValueError(f"{unknown[0]} is reserved: only Sandherd sets labels whose keys begin with {RESERVED_PREFIX}")
    return labels


LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY_PATTERN, max_length=317)]
"""The key of a label: 1 to 63 letters, digits, `-`, `_` and `.`, beginning and ending with a letter or digit; before
it, optionally, a DNS name of at most 253 characters and a slash."""
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE_PATTERN, max_length=63)]
"""The value of a label: empty, or up to 63 characters that are permitted in a key."""
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS), AfterValidator(_without_unknown_reserved)]
"""Labels of a task, by key."""
Selector = Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)]
"""Labels to select tasks by: a task must have all of them."""


def matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether these labels have all the wanted ones, with the same values."""
    return wanted.items() <= labels.items()
