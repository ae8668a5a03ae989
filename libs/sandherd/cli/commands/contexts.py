"""`sandherd context`: list, show, add, use, remove. Named herds, stored in the user's configuration folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.completion import context_names, project_names
from sandherd.cli.options import Format, HerdLocation, Output, example, group
from sandherd.client.terminal_text import write_text

if TYPE_CHECKING:
    from sandherd.client.named_contexts import NamedContext

app = group("Contexts, which are named herds: list, show, add, use, remove.", "sandherd context list")
HEADER = ("CONTEXT", "CURRENT", "URL", "PROJECT", "CREDENTIALS")
_ADD = "sandherd context add prod --url tls://herd.example.org:4222 --credentials ./prod.creds --project web --use"


def _checked_context(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "context")


Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The context's name.", callback=_checked_context, autocompletion=context_names),
]


@app.command("list", epilog=example("sandherd context list", "sandherd context list -o json"))
def list_contexts(output: Output = Format.TABLE) -> int:
    """List the contexts, and show which one is current."""
    from sandherd.cli.render.console import print_list
    from sandherd.client.named_contexts import contexts_file, read_contexts

    named_contexts = read_contexts(contexts_file())
    documents = [
        _facts(name, context, current=name == named_contexts.current)
        for name, context in sorted(named_contexts.contexts.items())
    ]
    rows = [
        (item["context"], "yes" if item["current"] else "", item["nats_url"], item.get("project"), item["credentials"])
        for item in documents
    ]
    print_list(output, {"contexts": documents, "current": named_contexts.current}, HEADER, rows)
    return 0


@app.command("show", epilog=example("sandherd context show", "sandherd --context prod context show -o json"))
def show_context(ctx: typer.Context, output: Output = Format.TABLE) -> int:
    """Show the herd that commands use with these options and this environment, and the source of each value."""
    from sandherd.cli.herd_session import command_context
    from sandherd.cli.render.console import print_document, print_facts
    from sandherd.client.named_contexts import LOCAL

    context = command_context(ctx)
    values = {
        "nats_url": context.nats_url,
        "project": context.project,
        "credentials": context.credentials,
        "ca": context.ca,
    }
    texts = {name: str(value) for name, value in values.items() if value is not None}
    if output.is_json:
        print_document(output, {"context": context.name or LOCAL, **texts, "sources": dict(context.sources)})
    elif output is Format.NAME:
        write_text(context.name or LOCAL)
    else:
        sources = {name: f"{value}  ({context.sources.get(name, 'context')})" for name, value in texts.items()}
        print_facts({"context": context.name or LOCAL, **sources})
    return 0


@app.command("add", epilog=example(_ADD))
def add_context(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    name: Name,
    *,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Address of the broker.")] = None,
    credentials: Annotated[
        Path | None, typer.Option("--credentials", metavar="FILE", help="A NATS .creds file; its path is stored.")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="NAME",
            help="Project to use [default: that of the credential].",
            autocompletion=project_names,
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="PEM file with the certificate authorities of the broker."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the context of this name.")] = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
    output: Output = Format.TABLE,
) -> int:
    """Add a context: a name for a herd, with the path of a credential. Credentials are not copied.

    The herd is not contacted. The file is `sandherd/contexts.json` in the user's configuration folder (~/.config).
    """
    from sandherd.cli.context_changes import add

    location = ctx.find_object(HerdLocation) or HerdLocation()
    return add(
        name,
        (url or location.nats_url, credentials or location.credentials, project, ca),
        output,
        replace=replace,
        use=use,
    )


@app.command("use", epilog=example("sandherd context use prod", "sandherd context use local"))
def use_context(name: Name, output: Output = Format.TABLE) -> int:
    """Make a context the current context; `local` is the stack of this machine.

    These take precedence over it, in this order: options, --context, variables, SANDHERD_CONTEXT. With --home or
    SANDHERD_HOME the current context is not used, because they name another herd.
    """
    from sandherd.cli.context_changes import use

    return use(name, output)


@app.command("remove", epilog=example("sandherd context remove prod"))
def remove_context(name: Name, output: Output = Format.TABLE) -> int:
    """Remove a context. Its herd and its credential are not changed."""
    from sandherd.cli.context_changes import change

    return change(name, output, lambda contexts: contexts.remove(name), f"context {name} is removed")


def _facts(name: str, context: "NamedContext", *, current: bool) -> dict[str, object]:
    return {"context": name, "current": current, **context.model_dump(mode="json", exclude_none=True)}
