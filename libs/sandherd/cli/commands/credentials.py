"""`sandherd credentials`: create, revoke. Both need the herd's keys."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.options import Format, Output, Project, example, group
from sandherd.cli.parse.durations import ONE_MINUTE, Wait

if TYPE_CHECKING:
    from sandherd.bus.identity import Bearer
    from sandherd.client.context import Context


class UserRole(StrEnum):
    """Role of a credential; its permissions are in `bus.auth.inboxes.USER_PRINCIPALS`."""

    CLIENT = "client"
    SUBSCRIBER = "subscriber"
    OPERATOR = "operator"


_SUBSCRIBER = "sandherd credentials create --role subscriber --project default"
app = group("Credentials of users and programs: create, revoke.", _SUBSCRIBER)
Identity = Annotated[
    Path | None,
    typer.Option("--identity", metavar="DIR", help="Folder with the herd's keys [default: that of the local stack]."),
]


@app.command(
    "create", epilog=example(_SUBSCRIBER, "sandherd credentials create --role client --life 90d --file ada.creds")
)
def create_credential(
    ctx: typer.Context,
    *,
    role: Annotated[
        UserRole,
        typer.Option(
            "--role", help="client (uses one project), subscriber (only receives its events) or operator (uses all)."
        ),
    ],
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="File to write.")] = None,
    life: Annotated[
        str | None, typer.Option("--life", metavar="TIME", help="Lifetime: 12h, 90d [default: no expiry].")
    ] = None,
    identity: Identity = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the file, for example after its credential was revoked.")
    ] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Create a credential for a user or program.

    This needs the herd's keys, but no broker. The permissions can't be changed later; docs/permissions.md lists them.
    """
    from sandherd.cli.herd_session import command_context
    from sandherd.cli.parse.units import seconds
    from sandherd.cli.render.console import print_document, print_facts
    from sandherd.safe_home import check_home

    context = command_context(ctx, project=project)
    if file is None:
        check_home(context.home)
    path = file or context.home / "creds" / f"{_default_name(role, context)}.creds"
    if not replace:
        _check_new(path)
    credential = _mint(
        context, role, path, identity or context.home / "identity", seconds(life, "--life") if life else None
    )
    facts = {"role": role.value, "project": credential.project, "file": str(path), "expires_at": credential.expires_at}
    if output.is_json:
        print_document(output, facts)
    else:
        print_facts(facts)
    return 0


@app.command("revoke", epilog=example("sandherd credentials revoke ada.creds"))
def revoke_credential(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The credential of a user or a program, or a copy of it.")
    ],
    *,
    identity: Identity = None,
    wait: Wait = ONE_MINUTE,
    output: Output = Format.TABLE,
) -> int:
    """Revoke a credential: the broker closes its connections and refuses it.

    This needs the herd's keys and its broker. Create a new one with `sandherd credentials create --replace`.
    """
    import asyncio

    from sandherd.admin.revocation import revoke_user
    from sandherd.cli.herd_session import command_context
    from sandherd.cli.render.console import print_document, print_facts
    from sandherd.telemetry import logs

    logs.configure("client", "critical")
    context = command_context(ctx)
    revoked = asyncio.run(revoke_user(context.nats_url, identity or context.home / "identity", file, wait))
    facts = {
        "name": revoked.name,
        "role": revoked.principal.value,
        "project": revoked.project,
        "public_key": revoked.public_key,
    }
    if output.is_json:
        print_document(output, facts)
    else:
        print_facts(facts)
    return 0


def _default_name(role: UserRole, context: "Context") -> str:
    return role.value if role is UserRole.OPERATOR else f"{role}-{context.project}"


def _check_new(path: Path) -> None:
    """Raise `HerdError` if the file exists."""
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    if path.exists():
        remedy = "name another file with --file, or replace it with --replace"
        raise HerdError.of(Code.CONFLICT, f"{path} already exists", field="file", remedy=remedy)


def _mint(context: "Context", role: UserRole, path: Path, identity: Path, life: float | None) -> "Bearer":
    """Create the credential and write it to its file. Raises `HerdError`."""
    from sandherd.admin.deployment import reading_keys
    from sandherd.bus.identity import HerdIdentity, Registrar, bearer, write_secret
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code
    from sandherd.contracts.names import UnsafeNameError
    from sandherd.contracts.subjects import Principal

    name = _default_name(role, context)
    registrar = Registrar(HerdIdentity(identity), lambda: datetime.now(UTC))
    with reading_keys(identity):
        try:
            text = registrar.mint_person(Principal(role.value), name[:63], project=context.project, life=life)
        except UnsafeNameError as error:
            raise HerdError.of(
                Code.UNSAFE_NAME, str(error), field="project", remedy="name one with --project"
            ) from None
    write_secret(path, text)
    return bearer(text)
