"""Reads secret values from standard input, a file or a prompt; never from arguments."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import read_hidden
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import TaskView
from sandherd.contracts.specs import MAX_SECRET_BYTES
from sandherd.contracts.states import TaskState

_RETRYABLE = frozenset({TaskState.FAILED, TaskState.CANCELLED})


async def retry_with_secrets(herd: Herd, task: str, values: Mapping[str, str]) -> TaskView:
    """Retry a task. Values of secrets that are neither given nor stored are read from a prompt. Raises `HerdError`."""
    secrets, view = dict(values), await herd.task(task)
    for name in missing_secrets(view, datetime.now(UTC)):
        if name not in secrets:
            secrets[name] = await _prompt(task, name)
    return await herd.retry(task, secrets=secrets)


def missing_secrets(view: TaskView, now: datetime) -> list[str]:
    """Names of the secret variables whose values a retry needs because they are not stored."""
    is_stored = view.secrets_until is not None and now < view.secrets_until
    return [] if is_stored or view.state not in _RETRYABLE else list(view.secret_env)


async def read_value(name: str, file: Path | None) -> str:
    """The value of a named secret, without one line break at its end. Raises `HerdError`.

    It is read from `file`, where `-` is standard input. Without a file it is typed on the terminal without echo, or
    read from standard input if that is not a terminal.
    """
    if file is None and sys.stdin.isatty():
        return await asyncio.to_thread(read_hidden, f"Value of {name}")
    source = "standard input" if file is None or str(file) == "-" else str(file)
    try:
        data = await asyncio.to_thread(_read_bytes, file)
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise _invalid(f"{source}: {error.strerror or 'cannot be read'}", "name a file that can be read") from None
    except UnicodeDecodeError:
        raise _invalid(f"{source}: only UTF-8 text can be a variable's value", "encode it, as in base64") from None
    if len(text.encode()) > MAX_SECRET_BYTES:
        raise _invalid(
            f"the value is longer than {MAX_SECRET_BYTES} bytes", "store a shorter secret that gives access to it"
        )
    return text


def _read_bytes(file: Path | None) -> bytes:
    """Read the longest permitted value, a line break, and one more byte, which shows that a value is too long."""
    limit = MAX_SECRET_BYTES + len("\r\n") + 1
    if file is None or str(file) == "-":
        return sys.stdin.buffer.read(limit)
    with file.open("rb") as opened:
        return opened.read(limit)


def _invalid(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field="value", remedy=remedy)


async def _prompt(task: str, name: str) -> str:
    """Read a value that is typed on the terminal without echo. Raises `HerdError` if there is no terminal."""
    if not sys.stdin.isatty():
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"the secrets of {task} are no longer stored: a value of {name} is needed",
            field="spec.secret_env",
            remedy=f"add --secret-env {name}, which copies the variable of this shell",
        )
    return await asyncio.to_thread(read_hidden, name)
