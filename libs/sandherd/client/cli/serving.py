"""Showing the agent server of a sandbox."""

from sandherd.client.cli import printing
from sandherd.client.cli.options import Format
from sandherd.client.herd import Herd


async def show(herd: Herd, sandbox: str, output: Format, *, key: bool) -> int:
    """Ask for it, and print what is said; 1 unless it answers."""
    found = await herd.agent_server(sandbox, with_key=key)
    told = found.model_dump(mode="json", exclude=set() if key else {"key", "headers"}, exclude_none=True)
    if output is Format.JSON:
        printing.document(told)
    else:
        headers = told.pop("headers", {})
        printing.facts(told | {f"header {name}": value for name, value in headers.items()})
    return 0 if found.state == "ready" else 1
