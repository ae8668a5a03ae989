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
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise _wrong(f"--label {item[:80]!r} is not a label", "write it as KEY=VALUE, as Kubernetes does: team=web")
        if found.setdefault(key, value) != value:
            raise _wrong(f"label {key} has two values", "give only one value")
    return found


def new_labels(items: Sequence[str]) -> dict[str, str]:
    """Labels of a new task, from `key=value`. Raises `HerdError` as `labels` does, and also for a reserved key."""
    found = labels(items)
    reserved = [key for key in found if key.startswith(RESERVED_PREFIX)]
    if reserved:
        raise _wrong(f"label {reserved[0]} is reserved", f"use a key without {RESERVED_PREFIX}")
    return found


def selector(items: Sequence[str], batch: str | None) -> dict[str, str]:
    """The labels that tasks must have, from labels and a batch. Raises `HerdError`."""
    return labels([*items, *([] if batch is None else [f"{BATCH_LABEL}={checked_name(batch, 'batch')}"])])


def named_or_labelled(names: Sequence[str], items: Sequence[str], batch: str | None) -> dict[str, str]:
    """The labels that tasks must have; empty if `names` are given. Raises `HerdError` if both are given, or neither."""
    found = selector(items, batch)
    if bool(names) == bool(found):
        both = "tasks are both named and selected by labels"
        raise HerdError.of(
            Code.INVALID_FIELD,
            both if names else "no tasks are selected",
            field="task",
            remedy="name tasks, or select them with --label or --batch",
        )
    return found


def cost_group(by: str, groups: Sequence[str]) -> tuple[Any, str | None]:
    """The group of `--by`, and the key of the label for `label:KEY`, else None. Raises `HerdError`."""
    kind, colon, key = by.partition(":")
    if kind == "label" and colon and _KEY.fullmatch(key):
        return "label", key
    if by not in groups:
        problem, remedy = f"--by {by[:80]!r} is not a group", f"use {', '.join(groups)} or label:KEY"
        raise HerdError.of(Code.INVALID_FIELD, problem, field="by", remedy=remedy)
    return by, None


def _wrong(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field="label", remedy=remedy)
