"""What a command line may say of the agent itself: its kind, its model, its tools, and any other field."""

from typing import Annotated

import typer

Harness = Annotated[
    str, typer.Option("--harness", help="The kind of agent: command, claude, openhands or acp; see docs/harnesses.md.")
]
Model = Annotated[str | None, typer.Option("--model", help="The model, for claude and openhands.")]
Ask = Annotated[
    list[str] | None,
    typer.Option("--ask", metavar="TOOL", help="The agent needs a person's leave for this tool; `*` is every tool."),
]
Deny = Annotated[
    list[str] | None, typer.Option("--deny", metavar="TOOL", help="The agent may not use this tool; again for more.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Another field of the harness, as max_turns=20; again for more."),
]
