"""Replaces each entry of a file of tasks that has a `matrix` by one entry for each combination of its values.

`matrix` is as in GitHub Actions: a mapping of keys to lists of values. All combinations of the values are used, except
those that match an entry of `exclude`. An entry of `include` adds its values to the combinations whose values it does
not contradict; if there are no such combinations, it becomes a combination itself. In every text of the entry,
`${{ matrix.KEY }}` stands for a value, and `$${{ matrix.KEY }}` for the text `${{ matrix.KEY }}`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final, NoReturn

from sandherd.client.errors import HerdError
from sandherd.client.tasks.entry_size import MAX_TASKS, MAX_VALUES, is_too_large
from sandherd.contracts.errors import Code
from sandherd.contracts.labels import LABEL_VALUE_PATTERN
from sandherd.contracts.names import SAFE_NAME_PATTERN

MAX_COMBINATIONS: Final = 256
_KEY: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_SAFE_NAME: Final = re.compile(SAFE_NAME_PATTERN)
_LABEL_VALUE: Final = re.compile(LABEL_VALUE_PATTERN)
_UNSAFE_CHARACTERS: Final = re.compile(r"[^a-z0-9]+")
_REFERENCE: Final = re.compile(r"(\$?)\$\{\{\s*matrix\b(?:\.([A-Za-z0-9_-]+)\s*\}\})?")
_KINDS: Final = {"float": "a number with a fraction", "bool": "true or false", "NoneType": "nothing", "date": "a date"}
_NAME_FIELDS: Final = frozenset({"depends_on", "task"})
"""Fields that contain names. A value is inserted there in the form that it has in the names of combinations."""

Values = dict[str, str]
"""The values of one combination, by key."""


@dataclass(frozen=True)
class Combination:
    """One combination of a matrix: its values, and the suffix of its name."""

    values: Values
    suffix: str


def expand_matrices(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries, with an entry for each combination of a matrix. Raises `HerdError` with the entry and the field.

    A dependency on an entry with a matrix becomes a dependency on each of its combinations.
    """
    groups = {str(entry["name"]): combinations(entry) for entry in entries if _has_matrix(entry)}
    if not groups:
        return list(entries)
    _refuse_shared_names(entries, groups)
    if sum(map(len, groups.values())) > MAX_TASKS:
        _refuse("all matrices together", "matrix", f"more than {MAX_TASKS} combinations", "split the file")
    expanded_entries = [each for entry in entries for each in _entries_of(entry, groups)]
    names = {name: [f"{name}-{choice.suffix}" for choice in choices] for name, choices in groups.items()}
    return [_with_dependencies(entry, names) for entry in expanded_entries]


def combinations(entry: Mapping[str, Any]) -> list[Combination]:
    """The combinations of an entry's matrix, in the order of the file. Raises `HerdError`."""
    name, matrix = str(entry["name"]), entry["matrix"]
    if not isinstance(matrix, Mapping):
        _refuse(name, "matrix", "not a mapping", "write `matrix: {key: [value, …]}`")
    axes = {str(key): _values_of_key(name, key, matrix[key]) for key in matrix if key not in {"include", "exclude"}}
    if prod(map(len, axes.values())) > MAX_COMBINATIONS:
        _refuse_too_many(name, prod(map(len, axes.values())))
    originals = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())] if axes else []
    remaining = _without_excluded(name, originals, axes, _rows(name, matrix, "exclude"))
    combined = _with_included(remaining, axes, _rows(name, matrix, "include"))
    if not combined:
        _refuse(name, "matrix", "it has no combination", "give each key a value, or remove an entry of `exclude`")
    if len(combined) > MAX_COMBINATIONS:
        _refuse_too_many(name, len(combined))
    return [Combination(values, _suffix(name, parts)) for values, parts in combined]


def _has_matrix(entry: Mapping[str, Any]) -> bool:
    """Whether the entry has a matrix. Raises `HerdError` if such an entry is too large or has no valid name."""
    if "matrix" not in entry:
        return False
    if is_too_large(entry):
        _refuse(
            str(entry.get("name"))[:80], "matrix", f"more than {MAX_VALUES} values, or nested too deeply", "shorten it"
        )
    name = entry.get("name")
    if not isinstance(name, str) or not _SAFE_NAME.fullmatch(name):
        shown = "a task with a matrix" if name is None else str(name)[:80]
        _refuse(shown, "name", "no safe name", "use lower-case letters, digits and dashes; values are appended to it")
    return True


def _values_of_key(name: str, key: Any, values: Any) -> list[str]:
    """The values of one key of a matrix, as texts. Raises `HerdError`, also for a repeated value."""
    field = f"matrix.{_key(name, key, 'matrix')}"
    if not isinstance(values, list) or not values:
        _refuse(name, field, "no list of values", f"write `{key}: [value, …]`")
    texts = [_value(name, f"{field}[{number}]", value) for number, value in enumerate(values)]
    repeated = [value for value, count in Counter(texts).items() if count > 1]
    if repeated:
        _refuse(name, field, f"{repeated[0]!r} is there twice", "remove one of them")
    return texts


def _key(name: str, key: Any, field: str) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        remedy = "use 1 to 63 letters, digits, `-` and `_`, beginning with a letter and not ending with `-` or `_`"
        _refuse(name, field, f"{str(key)[:80]!r} is not a key", remedy)
    return key


def _value(name: str, field: str, value: Any) -> str:
    """A value as text. Raises `HerdError` for a value that YAML has changed, such as 3.10 to 3.1 and `on` to true."""
    if isinstance(value, list | Mapping):
        _refuse(name, field, "not a text", "a value is a text or a whole number")
    if not isinstance(value, str | int) or isinstance(value, bool):
        kind = _KINDS.get(type(value).__name__, type(value).__name__)
        _refuse(name, field, f"YAML reads it as {kind}, {str(value)[:80]}", 'quote it, as "3.10" or "on"')
    text = str(value)
    if not _name_part(text):
        _refuse(name, field, f"{text[:80]!r} has no letter a to z and no digit", "a name is made from it: add one")
    return text


def _rows(name: str, matrix: Mapping[str, Any], field: str) -> list[Values]:
    """The entries of `include` or `exclude`."""
    rows, path = matrix.get(field, []), f"matrix.{field}"
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) and row for row in rows):
        _refuse(name, path, "no list of mappings", f"write `{field}: [{{key: value}}]`")
    return [
        {_key(name, key, f"{path}[{number}]"): _value(name, f"{path}[{number}].{key}", row[key]) for key in row}
        for number, row in enumerate(rows)
    ]


def _without_excluded(
    name: str, originals: list[Values], axes: Mapping[str, list[str]], rows: Sequence[Values]
) -> list[Values]:
    for number, row in enumerate(rows):
        field = f"matrix.exclude[{number}]"
        if not row.keys() <= axes.keys():
            unknown = min(row.keys() - axes.keys())
            _refuse(name, field, f"the matrix has no {unknown!r}", f"name one of {', '.join(axes) or 'its keys'}")
        if not any(row.items() <= values.items() for values in originals):
            _refuse(name, field, "it matches no combination", "correct its values, or remove it")
    return [values for values in originals if not any(row.items() <= values.items() for row in rows)]


def _with_included(
    originals: list[Values], axes: Mapping[str, list[str]], rows: Sequence[Values]
) -> list[tuple[Values, Sequence[str]]]:
    """All combinations, each with the values for its name: those of the keys with lists, or of its `include` entry."""
    combined: list[tuple[Values, Sequence[str]]] = [(dict(values), list(values.values())) for values in originals]
    added: list[tuple[Values, Sequence[str]]] = []
    for row in rows:
        axis_values = {key: value for key, value in row.items() if key in axes}
        matching = [values for values, _ in combined if axis_values.items() <= values.items()]
        for values in matching:
            values.update(row)
        if not matching:
            added.append((row, list(row.values())))
    return combined + added


def _suffix(name: str, parts: Sequence[str]) -> str:
    suffix = "-".join(_name_part(part) for part in parts)
    if not _SAFE_NAME.fullmatch(f"{name}-{suffix}"):
        _refuse(name, "matrix", f"the name {f'{name}-{suffix}'[:80]} has more than 63 characters", "shorten the values")
    return suffix


def _name_part(value: str) -> str:
    return _UNSAFE_CHARACTERS.sub("-", value.lower()).strip("-")


def _refuse_shared_names(entries: Sequence[Mapping[str, Any]], groups: Mapping[str, list[Combination]]) -> None:
    """Refuse two entries or two combinations with the same name, because a dependency would be ambiguous."""
    names = Counter(str(entry.get("name") or entry.get("task")) for entry in entries)
    for name, combinations in groups.items():
        if names[name] > 1:
            _refuse(name, "name", "two tasks have this name", "give each a different name")
        shared = [suffix for suffix, count in Counter(choice.suffix for choice in combinations).items() if count > 1]
        if shared:
            _refuse(name, "matrix", f"two combinations are named {name}-{shared[0]}", "change one of their values")


def _entries_of(entry: Mapping[str, Any], groups: Mapping[str, list[Combination]]) -> list[Mapping[str, Any]]:
    return [_entry_of(entry, choice) for choice in groups[str(entry["name"])]] if "matrix" in entry else [entry]


def _entry_of(entry: Mapping[str, Any], choice: Combination) -> dict[str, Any]:
    """The entry of one combination: with its name, its values inserted into all texts, and its values as labels."""
    name = f"{entry['name']}-{choice.suffix}"
    fields = {
        field: _with_values(name, field, value, choice.values) for field, value in entry.items() if field != "matrix"
    }
    if entry.get("task") is not None and "${{" not in str(entry["task"]):
        fields["task"] = f"{entry['task']}-{choice.suffix}"
    return fields | {"name": name, "labels": _labels(name, fields.get("labels"), choice.values)}


def _labels(name: str, labels: Any, values: Values) -> Any:
    """The labels, and a label for each value that is valid as one. Labels that are not a mapping are refused later."""
    if not isinstance(labels or {}, Mapping):
        return labels
    shared = sorted((labels or {}).keys() & values.keys())
    if shared:
        _refuse(name, f"labels.{shared[0]}", "the matrix sets this label", "use another key in one of the two")
    return {**(labels or {}), **{key: value for key, value in values.items() if _LABEL_VALUE.fullmatch(value)}}


def _with_values(name: str, field: str, value: Any, values: Values) -> Any:
    """A YAML value in which the references in texts, and in keys of mappings, are replaced by values."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _fill_placeholders(name, field, match, values), value)
    if isinstance(value, list):
        return [_with_values(name, field, item, values) for item in value]
    if isinstance(value, Mapping):
        return {
            _with_values(name, field, key, values): _with_values(name, f"{field}.{key}", item, values)
            for key, item in value.items()
        }
    return value


def _fill_placeholders(name: str, field: str, match: re.Match[str], values: Values) -> str:
    if match[1]:
        return match[0].removeprefix("$")
    if match[2] is None:
        _refuse(name, field, "a reference to the matrix is not complete", "write ${{ matrix.KEY }}")
    if match[2] not in values:
        _refuse(name, field, f"this combination has no {match[2]!r}", f"it has {', '.join(values)}")
    return _name_part(values[match[2]]) if field in _NAME_FIELDS else values[match[2]]


def _with_dependencies(entry: Mapping[str, Any], names: Mapping[str, list[str]]) -> Mapping[str, Any]:
    others = entry.get("depends_on")
    if not isinstance(others, list) or names.keys().isdisjoint(map(str, others)):
        return entry
    dependencies = [item for other in others for item in names.get(str(other), [other])]
    return {**entry, "depends_on": list(dict.fromkeys(dependencies))}


def _refuse_too_many(name: str, count: int) -> NoReturn:
    _refuse(name, "matrix", f"{count} combinations; the maximum is {MAX_COMBINATIONS}", "split it into several tasks")


def _refuse(name: str, field: str, problem: str, remedy: str) -> NoReturn:
    raise HerdError.of(Code.INVALID_FIELD, f"{name}: {field}: {problem}", field=field, remedy=remedy)
