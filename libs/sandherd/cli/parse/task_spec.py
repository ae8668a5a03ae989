"""Parses a task from command-line options."""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sandherd.cli.parse.units import future_time, seconds
from sandherd.client.errors import HerdError, validated
from sandherd.client.secret_values import check_secret_values
from sandherd.contracts.commands import MAX_FILES_BYTES, TaskSpec
from sandherd.contracts.errors import Code
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.names import ENV_NAME_PATTERN

_VARIABLE: Final = re.compile(ENV_NAME_PATTERN)


def spec(  # noqa: PLR0913  # one parameter per option
    text: str,
    *,
    harness: Mapping[str, Any],
    files: Sequence[Path],
    env: Sequence[str],
    secret_env: Sequence[str],
    secret_references: Sequence[str] = (),
    linger: int,
    deadline: str | None = None,
    attempt_timeout: str | None = None,
    task_timeout: str | None = None,
    attempts: int | None = None,
    retry_also: Sequence[ErrorType] = (),
    **fields: Any,
) -> TaskSpec:
    """The task spec from command-line options. `fields` are values that the spec has under the same names.

    Raises `HerdError` naming the invalid field.
    """
    secrets = secret_variables(secret_env, os.environ)
    return validated(
        TaskSpec,
        text=text,
        harness=harness,
        env=variables(env, os.environ) | secrets,
        secret_env=frozenset(secrets),
        secrets=references(secret_references),
        files=read_files(files),
        linger_seconds=linger,
        deadline=None if deadline is None else future_time(deadline, "--deadline", datetime.now(UTC)),
        attempt_seconds=None if attempt_timeout is None else seconds(attempt_timeout, "--attempt-timeout"),
        task_seconds=None if task_timeout is None else seconds(task_timeout, "--task-timeout"),
        retry={"max_attempts": attempts, "also": frozenset(retry_also)},
        **fields,
    )


def variables(items: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables from `K=V`, or from `K` with its value in `environ`. Raises `HerdError` for an unset or invalid `K`."""
    values = {}
    for item in items:
        name, equals, value = item.partition("=")
        _check_variable(name)
        if not equals and name not in environ:
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"variable {name[:60]!r} is not set here",
                field="env",
                remedy="write it as NAME=VALUE",
            )
        values[name] = value if equals else environ[name]
    return values


def secret_variables(items: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Like `variables`, for secrets. Raises `HerdError` also for a value that is too short to be redacted."""
    values = variables(items, environ)
    check_secret_values(values)
    return values


def _check_variable(name: str, remedy: str | None = None) -> None:
    if not _VARIABLE.fullmatch(name):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{name[:60]!r} is not a variable name",
            field="env",
            remedy=remedy or "use 1 to 128 letters, digits or underscores, not starting with a digit",
        )


def references(items: Sequence[str]) -> dict[str, str]:
    """Names of named secrets by variable, from `VARIABLE=NAME`; with only `NAME`, the variable has the same name.

    Raises `HerdError` for an invalid variable.
    """
    names = {}
    for item in items:
        variable, equals, name = item.partition("=")
        _check_variable(variable, None if equals else f"write `--secret VARIABLE={item[:60]}`")
        names[variable] = name if equals else variable
    return names


def read_files(paths: Sequence[Path]) -> dict[str, str]:
    """The files of a task, by their names in the work tree. Raises `HerdError` for files that can't be submitted."""
    files: dict[str, str] = {}
    remaining_bytes = MAX_FILES_BYTES
    for path in paths:
        name = name_in_tree(path)
        if name in files:
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"two files are named {name}",
                field="files",
                remedy="give one of them another name",
            )
        files[name] = _text(path, remaining_bytes - len(name))
        remaining_bytes -= len(name) + len(files[name].encode())
    return files


def name_in_tree(path: Path) -> str:
    """The path of a file in the work tree. An absolute path, or one with `..`, is shortened to its file name."""
    return path.name if path.is_absolute() or ".." in path.parts else path.as_posix()


def _text(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(max(0, limit) + 1)
    except OSError as error:
        raise HerdError.of(
            Code.INVALID_FIELD, f"{path}: {error.strerror}", field="files", remedy="name a file that can be read"
        ) from None
    if len(content) > limit:
        raise HerdError.of(
            Code.TOO_LARGE,
            f"{path}: the files of a task are limited to {MAX_FILES_BYTES} bytes in total, with their names",
            field="files",
            remedy="submit fewer files, and let the program fetch the rest",
        )
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{path}: not UTF-8 text",
            field="files",
            remedy="encode it, as with base64",
        ) from None
