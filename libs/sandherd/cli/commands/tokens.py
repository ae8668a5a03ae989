"""`sandherd tokens`: create, list, revoke access tokens of the HTTP API. The text of a token is shown only once."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.options import CreateProject, Format, Output, Project, example, group
from sandherd.cli.parse.durations import DefaultDuration, duration

if TYPE_CHECKING:
    from sandherd.client.access_tokens import NewToken
    from sandherd.client.herd import Herd
    from sandherd.contracts.records import AccessRole
    from sandherd.contracts.requests import TokenView

app = group("Access tokens of the HTTP API: create, list, revoke.", "sandherd tokens list")
HEADER = ("NAME", "KIND", "ROLE", "CREATED", "EXPIRES", "BY")
_DEFAULT_LIFETIME = DefaultDuration(90 * 86_400)


def _checked_token(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "token")


Name = Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and -.", callback=_checked_token)]


def checked_role(value: str) -> "AccessRole":
    """Check the name of a role, and return it. Raises `typer.BadParameter` for an unknown role."""
    if value not in {"read", "work", "approve", "operate"}:
        raise typer.BadParameter("it has to be read, work, approve or operate")
    return value  # type: ignore[return-value]  # one of the four


Role = Annotated[
    str,
    typer.Option(
        "--role",
        metavar="ROLE",
        parser=checked_role,
        help="read, work, approve or operate; each role includes the roles before it.",
    ),
]


@app.command(
    "create", epilog=example("sandherd tokens create ci", "sandherd tokens create ci --role work --expires 30d")
)
def create_token(  # one parameter per option
    ctx: typer.Context,
    name: Name,
    *,
    role: Role = "read",
    expires: Annotated[
        float, typer.Option("--expires", metavar="DURATION", parser=duration, help="Lifetime, such as 12h or 30d.")
    ] = _DEFAULT_LIFETIME,
    project: Project = None,
    create: CreateProject = False,
    output: Output = Format.TABLE,
) -> int:
    """Create an access token for a project, and print its text. The text is not stored and not shown again.

    `read` permits reading all data of the project, `work` also to submit, cancel and retry tasks, to send messages and
    to terminate sandboxes, `approve` also to decide approvals, and `operate` also to read audits and dead letters.
    """
    from sandherd.cli.command_templates import show_change
    from sandherd.cli.herd_session import command_context
    from sandherd.client.context import holder

    credentials = command_context(ctx, project=project).credentials
    by = holder(credentials).name if credentials else None

    async def work(herd: "Herd") -> "NewToken":
        return await herd.create_token(name, checked_role(role), lifetime=int(expires), by=by)

    return show_change(ctx, work, lambda new: new.text, project=project, output=output, create=create)


@app.command("list", epilog=example("sandherd tokens list", "sandherd tokens list -o json"))
def list_tokens(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """List the project's access tokens and the sessions of browsers, without their texts."""
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.console import print_list

    async def work(herd: "Herd") -> int:
        tokens = await herd.tokens()
        print_list(output, tokens, HEADER, [_row(view) for view in tokens.tokens])
        return 0

    return run_with_herd(ctx, work, project=project)


@app.command("revoke", epilog=example("sandherd tokens revoke ci"))
def revoke_token(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Revoke an access token with its sessions, or end one session. Open streams of its holder are closed."""
    from sandherd.cli.command_templates import show_change

    return show_change(
        ctx,
        lambda herd: herd.revoke_token(name),
        lambda view: f"token {view.name} is revoked",
        project=project,
        output=output,
    )


def _row(view: "TokenView") -> list[object]:
    return [view.name, view.kind, view.role, view.created_at, view.expires_at, view.user or view.created_by]
