"""Parses labels, and the selection of tasks by them, from command-line options."""

import re
from collections.abc import Sequence
from typing import Any, Final

from sandherd.client.errors import HerdError, checked_name
from sandherd.contracts.errors import Code
from sandherd.contracts.labels import BATCH_LABEL, LABEL_KEY_PATTERN, LABEL_VALUE_PATTERN, RESERVED_PREFIX

_KEY: Final = re.compile(LABEL_KEY_PATTERN)
_VALUE: Final = re.compile(LABEL_VALUE_PATTERN)


def labels(items: Sequence[str]) -> dict[str, str]:
    """Labels from `key=value`. Raises `HerdError` for an invalid label, and if a key has two values."""
    parsed: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise _invalid_label(
                f"--label {item[:80]!r} is not a label", "write it as KEY=VALUE, as Kubernetes does: team=web"
            )
        if parsed.setdefault(key, value) != value:
            raise _invalid_label(f"label {key} has two values", "give only one value")
    return parsed


def new_labels(items: Sequence[str]) -> dict[str, str]:
    """Labels of a new task, from `key=value`. Raises `HerdError` as `labels` does, and also for a reserved key."""
    parsed = labels(items)
    reserved = [key for key in parsed if key.startswith(RESERVED_PREFIX)]
    if reserved:
        raise _invalid_label(f"label {reserved[0]} is reserved", f"use a key without {RESERVED_PREFIX}")
    return parsed


def selector(items: Sequence[str], batch: str | None) -> dict[str, str]:
    """The labels that tasks must have, from labels and a batch. Raises `HerdError`."""
    return labels([*items, *([] if batch is None else [f"{BATCH_LABEL}={checked_name(batch, 'batch')}"])])


def required_labels(names: Sequence[str], items: Sequence[str], batch: str | None) -> dict[str, str]:
    """The labels that tasks must have; empty if `names` has tasks. Raises `HerdError` for both, and for neither."""
    selected = selector(items, batch)
    if bool(names) == bool(selected):
        problem = "tasks are both named and selected by labels"
        raise HerdError.of(
            Code.INVALID_FIELD,
            problem if names else "no tasks are selected",
            field="task",
            remedy="name tasks, or select them with --label or --batch",
        )
    return selected


def cost_group(by: str, groups: Sequence[str]) -> tuple[Any, str | None]:
    """The group of `--by`, and the key of the label for `label:KEY`, else None. Raises `HerdError`."""
    kind, colon, key = by.partition(":")
    if kind == "label" and colon and _KEY.fullmatch(key):
        return "label", key
    if by not in groups:
        problem, remedy = f"--by {by[:80]!r} is not a group", f"use {', '.join(groups)} or label:KEY"
        raise HerdError.of(Code.INVALID_FIELD, problem, field="by", remedy=remedy)
    return by, None


def _invalid_label(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field="label", remedy=remedy)
