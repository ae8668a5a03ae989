"""Installs or shows the completion for a named shell: typer's own options support only the shell they run in."""

from collections.abc import Sequence
from typing import Final

from sandherd.client.terminal_text import write_text

SHELLS: Final = ("bash", "zsh", "fish", "powershell", "pwsh")
INSTALL: Final = "--install-completion"
SHOW: Final = "--show-completion"
_PROGRAM: Final = "sandherd"
_VARIABLE: Final = "_SANDHERD_COMPLETE"


def completion_option(arguments: Sequence[str]) -> tuple[str, str] | None:
    """The option and the shell, if the arguments are `--install-completion` or `--show-completion` with a value."""
    parts = arguments[0].split("=", 1) if len(arguments) == 1 else list(arguments)
    return (parts[0], parts[1]) if len(parts) == 2 and parts[0] in {INSTALL, SHOW} else None


def handle_completion_option(option: str, shell: str) -> None:
    """Install or show the completion. Raises `HerdError` for a shell that is not supported."""
    from typer._completion_shared import get_completion_script, install

    if shell not in SHELLS:
        raise _unknown_shell(option, shell)
    if option == SHOW:
        write_text(get_completion_script(prog_name=_PROGRAM, complete_var=_VARIABLE, shell=shell))
        return
    _, path = install(shell, _PROGRAM, _VARIABLE)
    write_text(f"completion for {shell} is installed in {path}; it takes effect in new shells")


def _unknown_shell(option: str, shell: str) -> Exception:
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    return HerdError.of(
        Code.INVALID_FIELD,
        f"{option}: there is no completion for {shell}",
        field="shell",
        remedy=f"name one of {', '.join(SHELLS)}",
    )
