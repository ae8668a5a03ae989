"""Parses a command line that ends with another command: from its first word on, nothing is an option of ours."""

from collections.abc import Sequence
from typing import Any, Final

from typer.core import TyperCommand

_END: Final = "--"


class TrailingCommand(TyperCommand):
    """A command whose first argument is a name and whose further ones are a command, with or without `--` before it.

    Options are those before the name, and those between the name and the command.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse them. Raises `UsageError` for an unknown option, or without a name."""
        name = self._words_begin(args)
        if name == len(args) or args[name] == _END:
            return super().parse_args(ctx, args)
        between = args[name + 1 :]
        words = self._words_begin(between)
        command = between[words + 1 :] if between[words : words + 1] == [_END] else between[words:]
        return super().parse_args(ctx, [*args[:name], *between[:words], _END, args[name], *command])

    def _words_begin(self, args: Sequence[str]) -> int:
        """The index of the first that is neither an option nor the value of one; of `--`, if it is before that."""
        index = 0
        while index < len(args) and args[index] != _END and args[index].startswith("-") and len(args[index]) > 1:
            index += 2 if self._has_value_after(args[index]) else 1
        return min(index, len(args))

    def _has_value_after(self, option: str) -> bool:
        valued = {
            name
            for option in self.params
            if not getattr(option, "is_flag", True)
            for name in getattr(option, "opts", ())
        }
        if option.startswith("--"):
            return option in valued
        letters = [f"-{letter}" for letter in option[1:]]  # the value is the rest of the word, if there is one
        return next((index for index, letter in enumerate(letters) if letter in valued), None) == len(letters) - 1
