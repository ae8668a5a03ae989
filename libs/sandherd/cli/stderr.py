"""What the command prints on standard error: one line, with its name before it."""

from sandherd.client.terminal_text import visible_line, write_text


def print_error(line: str) -> None:
    """Print one line on standard error. If it can't be written, there is only the exit status."""
    write_text(f"sandherd: {visible_line(line)}", error=True, flush=True)
