"""Prints lines on standard error, after the name of the command."""

from sandherd.client.terminal_text import visible_line, write_text


def print_error(line: str) -> None:
    """Print one line on standard error. If it can't be written, only the exit status reports the error."""
    write_text(f"sandherd: {visible_line(line)}", error=True, flush=True)
