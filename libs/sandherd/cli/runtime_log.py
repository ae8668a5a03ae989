"""Shows the log that a runtime stores for a sandbox."""

from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.stderr import print_error
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import write_output


async def show(herd: Herd, sandbox: str, output: Format, *, lines: int) -> int:
    """Request the log, and print its last lines. Returns 0."""
    text, truncated = await herd.runtime_logs(sandbox, lines=lines)
    if output.is_json:
        console.print_document(output, {"sandbox": sandbox, "text": text, "truncated": truncated})
        return 0
    write_output(text, colours=console.Paint.for_screen().on)
    if truncated:
        print_error("the log is longer: its beginning is not shown")
    return 0
