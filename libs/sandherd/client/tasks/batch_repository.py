"""The `repository` of a task in a file: a mapping with `url` or `path`, and options; or a text, a URL or a path.

A path is relative to the folder of the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sandherd.client.errors import HerdError, validated
from sandherd.client.repositories.source import RepositorySource, url_or_path
from sandherd.contracts.errors import Code

FIELD: Final = "repository"


def repository_of(fields: dict[str, Any], folder: Path) -> RepositorySource | None:
    """Remove a local repository from a task's fields, and return it. A repository with a URL remains in the fields.

    Raises `HerdError` with the field's path in the file.
    """
    value = fields.pop(FIELD, None)
    if value is None:
        return None
    try:
        source = _source(value, folder)
        if not source.is_local:
            fields[FIELD] = source.of_url()
            return None
    except HerdError as error:
        inner_field = error.problem.field
        message = error.problem.message.removeprefix(f"{inner_field}: ")
        path = f"{FIELD}.{inner_field}" if inner_field else FIELD
        raise HerdError(error.problem.model_copy(update={"field": path, "message": f"{path}: {message}"})) from None
    if used := [name for name in ("work", "resume") if fields.get(name) is not None]:
        raise _error(f"a task that begins with a repository can't also begin with {used[0]}")
    return source


def _source(value: Any, folder: Path) -> RepositorySource:
    if isinstance(value, str):
        value = url_or_path(value)
    if not isinstance(value, Mapping):
        raise HerdError.of(Code.INVALID_FIELD, "write `repository: {url: …}`, or `{path: …}`")
    source = validated(RepositorySource, **{str(name): value for name, value in value.items()})
    if source.is_default:
        raise HerdError.of(Code.INVALID_FIELD, "name either the url of a repository, or the path of a local one")
    return source if source.path is None else source.model_copy(update={"path": str(folder / source.path)})


def _error(message: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, f"{FIELD}: {message}", field=FIELD)
