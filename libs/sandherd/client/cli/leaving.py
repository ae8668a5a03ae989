"""How the command leaves: its exit status, and one line on standard error that says what helps."""

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import typer

from sandherd.client.cli.app import app
from sandherd.client.terminal_text import put, visible_line

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
_MISUSE: Final = frozenset({"unsafe_name", "invalid_field", "too_large"})


def status_of(arguments: Sequence[str]) -> int:
    """Run the command. Never a traceback for what may be expected: a refusal, a service or a broker that is away."""
    try:
        found = app(list(arguments) or ["--help"], prog_name="sandherd", standalone_mode=False)
        return found if isinstance(found, int) else 0
    except typer.TyperException as error:
        complain(_one_line(error))
        return MISUSED if error.exit_code == MISUSED else FAILED
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does; Python must not try to flush into it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001  # narrowed at once; importing the errors first would slow `--help`
        return _expected(error, arguments)


def complain(line: str) -> None:
    """One line on standard error."""
    put(f"sandherd: {visible_line(line)}", error=True)


def _one_line(error: typer.TyperException) -> str:
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "sandherd"
    return f"{' '.join(error.format_message().split()).rstrip('.')}; see `{command} --help`"


def _expected(error: Exception, arguments: Sequence[str]) -> int:
    """The status for an error of the client. Raises every other error again: that is a fault of ours."""
    from sandherd.client.errors import HerdError

    if not isinstance(error, HerdError):
        raise error
    misused = error.problem.code in _MISUSE
    remedy = f"see `sandherd {_command(arguments)}--help`" if misused else "look with `sandherd doctor`"
    if error.problem.code == "conflict":
        remedy = "see how it stands with `sandherd sandboxes get` or `sandherd tasks get`"
    complain(error.line if error.problem.remedy else f"{error.line}; {remedy}")
    return MISUSED if misused else FAILED


def _command(arguments: Sequence[str]) -> str:
    """The command among the words that were typed, with a blank behind it."""
    names = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    return next((f"{word} " for word in arguments if word in names), "")
