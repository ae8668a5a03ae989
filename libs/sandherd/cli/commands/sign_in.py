"""`sandherd open`: opens or prints a link that signs a browser in to the herd's pages."""

import html
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from sandherd.cli.commands.tokens import Role, checked_role
from sandherd.cli.options import Format, NamelessOutput, Project, checked_sandbox, example

if TYPE_CHECKING:
    from pathlib import Path

    from sandherd.client.context import Context
    from sandherd.client.herd import Herd

OPEN_EXAMPLE = example("sandherd open", "sandherd open sbx-01kahc5x3tf8b9n2m4r6v8w0ya --print")


def open_(  # one parameter per option
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="SANDBOX|TASK",
            help="Open the page of this sandbox, or of this task's sandbox [default: the page of the herd].",
            callback=checked_sandbox,
        ),
    ] = None,
    *,
    role: Role = "operate",
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Address of the gateway [default: the setting gateway_url, or the gateway of the local stack].",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the link, and open no browser.")] = False,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Sign a browser in to the herd's pages, and open them. The link can be used once, within one minute.

    The page asks for confirmation, unless the browser is signed in to the same project already.

    On a terminal, this command opens the browser of this machine. Otherwise, and with --print, it prints the link.
    Treat the link like a password until it has been used or has expired.
    """
    from sandherd.cli.herd_session import command_context, run_with_herd
    from sandherd.cli.name_prefixes import sandbox_view
    from sandherd.cli.render.console import print_document
    from sandherd.client.terminal_text import write_text

    context = command_context(ctx, project=project)

    async def work(herd: "Herd") -> int:
        page = "/" if target is None else f"/sandboxes/{(await sandbox_view(herd, target)).sandbox}"
        new = await herd.create_code(checked_role(role), user=_user(context))
        link = f"{_address(context, url or new.view.url)}/sign-in#{urlencode({'code': new.text, 'next': page})}"
        if output.is_json:
            print_document(output, {"url": link, "expires_at": new.view.expires_at})
        elif show or not _open_browser(context.home, link):
            write_text(link)
        return 0

    return run_with_herd(ctx, work, project=project)


def _address(context: "Context", url: str | None) -> str:
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    address = url or _local_address(context)
    if address is None or not address.startswith(("http://", "https://")):
        raise HerdError.of(
            Code.INVALID_FIELD,
            "the address of the gateway is unknown",
            field="url",
            remedy="name it with --url, or set SANDHERD_GATEWAY_URL",
        )
    return address.removesuffix("/").removesuffix("/api/v1")


def _local_address(context: "Context") -> str | None:
    """The address of the local stack's gateway, if the context is that stack."""
    from sandherd.cli.commands.stack import local_stack
    from sandherd.client.errors import HerdError

    try:
        stack = local_stack().stack
    except HerdError:  # only the client is installed
        return None
    home = stack.Home(context.home)
    return home.api_url if stack.read_context(home).get("nats_url") == context.nats_url else None


def _user(context: "Context") -> str | None:
    """The name of the user to sign in: the name of the credential's holder, and the login name on this machine."""
    from sandherd.cli.login_name import login_name
    from sandherd.client.context import holder

    names = [holder(context.credentials).name if context.credentials else None, login_name()]
    return "/".join(dict.fromkeys(name for name in names if name))[:200] or None


def _open_browser(home: "Path", link: str) -> bool:
    """Open the link in a browser of this machine. Returns whether a browser was started.

    The browser gets the path of a file that redirects to the link, because all users can read a program's arguments.
    """
    import sys
    import webbrowser

    from sandherd.client.terminal_text import write_text
    from sandherd.private_files import write_file

    if not sys.stdout.isatty():
        return False
    file = home / "run" / "open.html"
    write_file(file, f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">')
    if not webbrowser.open(file.as_uri()):
        return False
    write_text("opened in your browser; use --print to print the link instead")
    return True
