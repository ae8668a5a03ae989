"""`sandherd sandboxes`: list, get, terminate."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.options import Cursor, Format, Limit, Output, Past, Project, SandboxName, example, group
from sandherd.contracts.states import SandboxState

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import SandboxView

app = group("Sandboxes: list, get, terminate.", "sandherd sandboxes list")
HEADER = ("SANDBOX", "STATE", "TASK", "RUNTIME", "ISOLATION", "REQUESTED", "REASON")


@app.command(
    "list", epilog=example("sandherd sandboxes list --state running", "sandherd sandboxes list --past -o json")
)
def list_sandboxes(  # one parameter per option
    ctx: typer.Context,
    *,
    state: Annotated[SandboxState | None, typer.Option("--state", help="Only sandboxes in this state.")] = None,
    past: Past = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Sandboxes, newest first: those that live, and those that ended lately."""
    from sandherd.client.cli.printing import answer
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        found = await herd.sandboxes(state=state, limit=limit, cursor=cursor, past=past)
        document = {"sandboxes": found.items, "next_cursor": found.next_cursor, "from": found.origin}
        answer(output, document, HEADER, [_row(sandbox) for sandbox in found.items])
        return 0

    return talk(ctx, work, project=project)


@app.command("get", epilog=example("sandherd sandboxes get sbx-01kahc5x3tf8b9n2m4r6v8w0ya"))
def get_sandbox(
    ctx: typer.Context, sandbox: SandboxName, project: Project = None, output: Output = Format.TABLE
) -> int:
    """One sandbox as it stands, or as it stood last."""
    from sandherd.client.cli.printing import document, facts
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        found = await herd.sandbox(sandbox)
        if output is Format.JSON:
            document(found)
        else:
            facts(dict(found))
        return 0

    return talk(ctx, work, project=project)


@app.command("terminate", epilog=example("sandherd sandboxes terminate sbx-01kahc5x3tf8b9n2m4r6v8w0ya"))
def terminate_sandbox(
    ctx: typer.Context,
    sandbox: SandboxName,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the sandbox.")] = "asked for",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """End a sandbox and every process in it."""
    from sandherd.client.cli.printing import document
    from sandherd.client.cli.talking import standing, talk

    async def work(herd: "Herd") -> int:
        state = await standing(herd.sandbox(sandbox))
        await herd.terminate(sandbox, reason=reason)
        if output is Format.JSON:
            document({"sandbox": sandbox, "asked": "terminate", "was": state})
        else:
            print(f"asked to end {sandbox}, which was {state or 'not to be looked at: its services are away'}")
        return 0

    return talk(ctx, work, project=project)


def _row(sandbox: "SandboxView") -> list[object]:
    return [
        sandbox.sandbox,
        sandbox.state,
        sandbox.task,
        sandbox.runtime,
        sandbox.isolation,
        sandbox.requested_at,
        sandbox.error or sandbox.reason,
    ]
