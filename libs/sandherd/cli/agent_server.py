"""Shows the agent server of a sandbox."""

from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.client.herd import Herd


async def show(herd: Herd, sandbox: str, output: Format, *, key: bool) -> int:
    """Request the state of the agent server, and print it. Returns 0 if the server is ready, else 1."""
    server = await herd.agent_server(sandbox, with_key=key)
    facts = server.model_dump(mode="json", exclude=set() if key else {"key", "headers"}, exclude_none=True)
    if output.is_json:
        console.print_document(output, facts)
    else:
        headers = facts.pop("headers", {})
        console.print_facts(facts | {f"header {name}": value for name, value in headers.items()})
    return 0 if server.state == "ready" else 1
