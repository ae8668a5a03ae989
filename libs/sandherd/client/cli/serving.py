"""Showing the agent server of a sandbox."""

from sandherd.client.cli import printing
from sandherd.client.cli.options import Format
from sandherd.client.herd import Herd


async def show(herd: Herd, sandbox: str, output: Format, *, key: bool) -> int:
    """Ask for it, and print what is said; 1 unless it answers."""
    found = await herd.agent_server(sandbox, with_key=key)
    told = found.model_dump(mode="json", exclude=set() if key else {"key"})
    if output is Format.JSON:
        printing.document(found if key else told)
    else:
        printing.facts({name: value for name, value in told.items() if value is not None})
    return 0 if found.state == "ready" else 1
