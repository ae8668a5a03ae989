"""Runs the command and determines its exit status: an error becomes a status and one line with the remedy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import typer
from typer._click.exceptions import NoSuchOption

from sandherd.cli.app import build_for, named_command
from sandherd.cli.completion_scripts import completion_option, handle_completion_option
from sandherd.cli.stderr import print_error
from sandherd.client.terminal_text import discard_output, flush_output, has_reader, same_streams

if TYPE_CHECKING:
    from sandherd.client.errors import HerdError

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
OUTPUT_NOT_READ: Final = 141
"""The exit status of a program that SIGPIPE has ended, because the reader of its output has exited, as `head` does."""
_GLOBAL_OPTIONS: Final = frozenset({"--nats-url", "--credentials", "--home", "--config", "--context"})
"""The options of `sandherd` itself."""
_EXTRA_ARGUMENT_MESSAGE: Final = "Got unexpected extra argument"
_VALIDATOR_MESSAGES: Final = {
    "Input should be greater than or equal to": "it has to be at least",
    "Input should be less than or equal to": "it has to be at most",
    "Input should be a valid integer, unable to parse string as an integer": "it has to be a whole number",
    "Input should be a valid number, unable to parse string as a number": "it has to be a number",
    "Value error, ": "",
}
"""Texts of pydantic in messages, and their replacements."""
_UNKNOWN_COMMAND_MESSAGE: Final = "No such command"
_SYNONYMS: Final = (
    frozenset({"get", "show", "describe", "inspect"}),
    frozenset({"list", "ls", "ps"}),
    frozenset({"delete", "remove", "rm", "revoke"}),
    frozenset({"cancel", "terminate", "stop", "kill", "abort"}),
    frozenset({"create", "add", "new", "set", "submit"}),
)
"""Sets of verbs with one meaning in different programs. A group of commands has one or two verbs of a set."""
_MISUSE_CODES: Final = frozenset({"unsafe_name", "invalid_field", "too_large"})
"""Codes of errors with the exit status `MISUSED`, because an argument is wrong."""


def run_command(arguments: Sequence[str]) -> int:
    """Run the command and return its status. Expected errors, such as a refusal, are printed without a traceback.

    `help COMMAND` is the same as `COMMAND --help`, and `version` the same as `--version`.
    """
    if list(arguments) == ["version"]:
        arguments = ["--version"]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    try:
        status = _run(arguments)
        flush_output()
        return status
    except (OSError, UnicodeError) as error:
        output_not_read = isinstance(error, BrokenPipeError) and not has_reader()
        discard_output()
        # If the reader of the output has exited, no line is printed. Any other broken pipe, as of a child, is an error.
        return OUTPUT_NOT_READ if output_not_read else _environment_error(error)


def _run(arguments: Sequence[str]) -> int:
    try:
        result = _call(arguments)
        return result if isinstance(result, int) else 0
    except typer.TyperException as error:
        print_error(_one_line(error))
        return MISUSED if error.exit_code == MISUSED else FAILED
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # `_herd_error` raises others again; to import `HerdError` here would slow `--help`
        return _herd_error(error, arguments)


def _call(arguments: Sequence[str]) -> object:
    """Call the command, and return its result. Raises its errors, also a broken pipe, for which typer would exit."""
    if (shell_option := completion_option(arguments)) is not None:
        handle_completion_option(*shell_option)
        return None
    app = build_for(arguments)
    try:
        with same_streams():  # typer replaces the streams by others that ignore a closed pipe
            return app(list(arguments) or ["--help"], prog_name="sandherd", standalone_mode=False)
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        raise ended.__context__ from None


def _environment_error(error: OSError | UnicodeError) -> int:
    """Print an error of this machine: of a path, a disk, the output or an encoding. Returns the exit status."""
    from sandherd.cli.system_errors import describe_system_error, describe_text_error

    print_error(describe_system_error(error) if isinstance(error, OSError) else describe_text_error(error))
    return FAILED


def _one_line(error: typer.TyperException) -> str:
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "sandherd"
    if isinstance(error, NoSuchOption) and error.option_name in _GLOBAL_OPTIONS:
        rest = command.partition(" ")[2]
        return f"{error.option_name} goes before the command: `sandherd {error.option_name} VALUE {rest}`"
    if command.endswith("secrets set") and error.format_message().startswith(_EXTRA_ARGUMENT_MESSAGE):
        return f"a secret's value is not an argument, which other users could read; see `{command} --help`"
    if isinstance(error, NoSuchOption) and command.endswith(" search"):
        return f"No such option: {error.option_name}; write text that begins with - after --: `{command} -- TEXT`"
    message = _without_validator_terms(" ".join(error.format_message().split())).rstrip(".")
    if (
        message.startswith(_UNKNOWN_COMMAND_MESSAGE)
        and not message.endswith("?")
        and (suggestions := _synonyms(message, context))
    ):
        message = f"{message}. Did you mean {suggestions}?"
    return f"{message} See `{command} --help`" if message.endswith("?") else f"{message}; see `{command} --help`"


def _synonyms(message: str, context: Any) -> str:
    """The commands of the group that mean the same as the unknown command; empty if there is none."""
    if context is None or context.parent is None:
        return ""  # outside of groups, such a verb is a command itself: `sandherd ls` lists files
    name, commands = (
        message.removeprefix(_UNKNOWN_COMMAND_MESSAGE).strip(" '"),
        getattr(context.command, "commands", {}),
    )
    alike = {other for synonyms in _SYNONYMS if name in synonyms for other in synonyms & commands.keys()}
    return " or ".join(f"'{other}'" for other in sorted(alike))


def _without_validator_terms(message: str) -> str:
    """The message with plain words in place of those of pydantic."""
    for message_part, replacement in _VALIDATOR_MESSAGES.items():
        message = message.replace(message_part, replacement)
    return message


def _herd_error(error: Exception, arguments: Sequence[str]) -> int:
    """Print a `HerdError`. Returns the exit status. Any other error is a bug and is raised again."""
    from sandherd.cli.home_option import home_in, with_home
    from sandherd.client.errors import HerdError

    if not isinstance(error, HerdError):
        raise error
    misused = error.problem.code in _MISUSE_CODES
    help_page = " ".join(["sandherd", *named_command(arguments), "--help"])
    remedy = f"see `{help_page}`" if misused else "check with `sandherd doctor`"
    if error.problem.code == "conflict":
        remedy = "see its state with `sandherd sandboxes get` or `sandherd tasks get`"
    line = _option_line(error)
    print_error(with_home(line if error.problem.remedy else f"{line}; {remedy}", home_in(arguments)))
    return MISUSED if misused else FAILED


def _option_line(error: "HerdError") -> str:
    from sandherd.cli.invalid_options import describe_invalid_option, with_option_names
    from sandherd.client.errors import InvalidFieldError

    described = describe_invalid_option(error) if isinstance(error, InvalidFieldError) else None
    return described or with_option_names(error).line
