"""`sandherd credentials`: create. Needs the herd's keys."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.options import Format, Output, Project, example, group

if TYPE_CHECKING:
    from sandherd.bus.identity import Bearer
    from sandherd.client.context import Context


class PersonRole(StrEnum):
    """Role of a credential; its permissions are in `bus.auth.inboxes.PEOPLE`."""

    CLIENT = "client"
    SUBSCRIBER = "subscriber"
    OPERATOR = "operator"


_SUBSCRIBER = "sandherd credentials create --role subscriber --project default"
app = group("Credentials of users and programs: create.", _SUBSCRIBER)


@app.command(
    "create", epilog=example(_SUBSCRIBER, "sandherd credentials create --role client --life 90d --file ada.creds")
)
def create_credential(
    ctx: typer.Context,
    *,
    role: Annotated[
        PersonRole, typer.Option("--role", help="Use one project, only receive its events, or use all projects.")
    ],
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="File to write.")] = None,
    life: Annotated[
        str | None, typer.Option("--life", metavar="TIME", help="Lifetime: 12h, 90d [default: no expiry].")
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option("--identity", metavar="DIR", help="Folder with the herd's keys [default: the local stack's]."),
    ] = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Create a credential for a user or program.

    This needs the herd's keys and no broker. Its permissions are fixed at creation; docs/permissions.md lists them.
    """
    from sandherd.cli.parse.units import seconds
    from sandherd.cli.render.console import document, facts
    from sandherd.cli.session import where
    from sandherd.safe_home import check_home

    context = where(ctx, project=project)
    if file is None:
        check_home(context.home)
    path = file or context.home / "creds" / f"{_named(role, context)}.creds"
    made = _mint(context, role, path, identity or context.home / "identity", seconds(life, "--life") if life else None)
    known = {"role": role.value, "project": made.project, "file": str(path), "expires_at": made.expires_at}
    if output.is_json:
        document(output, known)
    else:
        facts(known)
    return 0


def _named(role: PersonRole, context: "Context") -> str:
    return role.value if role is PersonRole.OPERATOR else f"{role}-{context.project}"


def _mint(context: "Context", role: PersonRole, path: Path, identity: Path, life: float | None) -> "Bearer":
    """Create the credential and write it to a new file. Raises `HerdError`, also if the file exists."""
    from sandherd.admin.deployment import reading_keys
    from sandherd.bus.identity import HerdIdentity, Registrar, bearer, write_secret
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code
    from sandherd.contracts.names import UnsafeNameError
    from sandherd.contracts.subjects import Principal

    if path.exists():
        raise HerdError.of(
            Code.CONFLICT, f"{path} already exists", field="file", remedy="name another file with --file"
        )
    name = _named(role, context)
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
