"""Parses a command line that ends with another command. Options of that command are not parsed."""

import shlex
from collections.abc import Sequence
from typing import Any, Final

from typer.core import TyperCommand

_SEPARATOR: Final = "--"
_MAX_DESCRIPTION_LENGTH: Final = 2000


class _WithCommand(TyperCommand):
    """A command whose last arguments may be another command."""

    def _command_index(self, args: Sequence[str]) -> int:
        """The index of the first argument that is `--`, or neither an option nor the value of an option."""
        index = 0
        while index < len(args) and args[index] != _SEPARATOR and args[index].startswith("-") and len(args[index]) > 1:
            index += 2 if self._has_value_after(args[index]) else 1
        return min(index, len(args))

    def _has_value_after(self, option: str) -> bool:
        """Whether the next argument is the value of this option."""
        options_with_value = {
            name
            for option in self.params
            if not getattr(option, "is_flag", True)
            for name in getattr(option, "opts", ())
        }
        if option.startswith("--"):
            return option in options_with_value
        letters = [f"-{letter}" for letter in option[1:]]  # if more letters follow, they are the value
        return (
            next((index for index, letter in enumerate(letters) if letter in options_with_value), None)
            == len(letters) - 1
        )


class DescribedProgram(_WithCommand):
    """A command with a description, then `--` and a program. The default description is the program's command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `UsageError` for an unknown option, or without description and program."""
        end = self._command_index(args)
        if args[end : end + 1] == [_SEPARATOR] and (program := args[end + 1 :]):
            args = [*args[:end], _SEPARATOR, shlex.join(program)[:_MAX_DESCRIPTION_LENGTH], *program]
        return super().parse_args(ctx, args)


class TrailingCommand(_WithCommand):
    """A command whose first argument is a name, followed by a command, with or without `--` between them.

    Its own options are before the name, or between the name and the command.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `UsageError` for an unknown option, or without a name."""
        options, command = self.split(args)
        return super().parse_args(ctx, [*options, _SEPARATOR, *command])

    def split(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """The options with their values, and the name followed by the command."""
        name = self._command_index(args)
        options, rest = list(args[:name]), list(args[name:])
        if not rest or rest[0] == _SEPARATOR:
            return options, rest[1:]
        first = self._command_index(rest[1:]) + 1
        command = rest[first + 1 :] if rest[first : first + 1] == [_SEPARATOR] else rest[first:]
        return [*options, *rest[1:first]], [rest[0], *command]
