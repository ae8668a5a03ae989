"""Reads settings from YAML, and shows values as text. Errors and output contain no secrets."""

import json
import re
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from sandherd.contracts.errors import Code, ContractError

CONFIG_VARIABLE: Final = "SANDHERD_CONFIG"
"""The environment variable with the path of the YAML file."""
MASK: Final = "********"
_PASSWORD: Final = re.compile(r"(?<=://)[^/@\s,]+(?=@)")


def as_text(value: Any) -> str:
    """A value as text, in the form of a variable's value. User and password in a URL are masked."""
    if isinstance(value, BaseModel | dict):
        return json.dumps(to_jsonable_python(value, exclude_none=True), ensure_ascii=False)
    text = ",".join(sorted(map(str, value))) if isinstance(value, frozenset) else str(value)
    return _PASSWORD.sub(MASK, text)


def from_yaml(path: Path | None) -> dict[str, Any]:
    """The settings in a YAML file; none if `path` is None. Raises `ContractError`, which names the file."""
    if path is None:
        return {}
    import yaml  # imported late: it takes a quarter of the time to load all settings, and most processes have no file

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ContractError(
            Code.INVALID_FIELD,
            f"settings file {path}: {describe_error(error)}",
            remedy=f"correct it, or name another file with `sandherd --config` or {CONFIG_VARIABLE}",
        ) from None
    if not isinstance(document, dict):
        raise ContractError(
            Code.INVALID_FIELD,
            f"settings file {path}: it has to be a mapping of settings",
            remedy="write one setting in each line, such as `max_sandboxes: 8`",
        )
    return {str(name): value for name, value in document.items()}


def describe_error(error: Exception) -> str:
    """The error in a YAML document and its line, without the document's content, which may be a secret."""
    from yaml import MarkedYAMLError

    if isinstance(error, MarkedYAMLError):
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        return f"{line}{error.problem}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "it is not YAML text"
