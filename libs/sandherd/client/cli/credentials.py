"""`sandherd credentials`: create. For whoever holds the keys of a herd."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.options import Format, Output, Project, example, group

if TYPE_CHECKING:
    from sandherd.bus.identity import Bearer
    from sandherd.client.context import Context


class PersonRole(StrEnum):
    """What the holder of a credential may do: `bus.permissions.PEOPLE`."""

    CLIENT = "client"
    SUBSCRIBER = "subscriber"
    OPERATOR = "operator"


_SUBSCRIBER = "sandherd credentials create --role subscriber --project default"
app = group("Credentials of people and programs: create.", _SUBSCRIBER)


@app.command(
    "create", epilog=example(_SUBSCRIBER, "sandherd credentials create --role client --life 90d --file ada.creds")
)
def create_credential(
    ctx: typer.Context,
    *,
    role: Annotated[
        PersonRole, typer.Option("--role", help="Work in a project, only hear its events, or work in all of them.")
    ],
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="Where it is put.")] = None,
    life: Annotated[
        str | None, typer.Option("--life", metavar="TIME", help="How long it is good: 12h, 90d; else for ever.")
    ] = None,
    identity: Annotated[
        Path | None, typer.Option("--identity", metavar="DIR", help="The herd's keys; else those of the local stack.")
    ] = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Make a credential for one more person or program.

    It needs the keys of the herd and no broker. What it allows is fixed when it is made; docs/permissions.md lists it.
    """
    from sandherd.client.cli.durations import seconds
    from sandherd.client.cli.printing import document, facts
    from sandherd.client.cli.talking import where

    context = where(ctx, project=project)
    path = file or context.home / "creds" / f"{_named(role, context)}.creds"
    made = _mint(context, role, path, identity or context.home / "identity", seconds(life, "--life") if life else None)
    known = {"role": role.value, "project": made.project, "file": str(path), "expires_at": made.expires_at}
    (document if output is Format.JSON else facts)(known)
    return 0


def _named(role: PersonRole, context: "Context") -> str:
    return role.value if role is PersonRole.OPERATOR else f"{role}-{context.project}"


def _mint(context: "Context", role: PersonRole, path: Path, identity: Path, life: float | None) -> "Bearer":
    """Create the credential and write it to a new file. Raises `HerdError`, also where the file exists."""
    from sandherd.bus.identity import Identity, Registrar, bearer, write_secret
    from sandherd.client.deployment import reading_keys
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code
    from sandherd.contracts.names import UnsafeNameError
    from sandherd.contracts.subjects import Principal

    if path.exists():
        raise HerdError.of(Code.CONFLICT, f"{path} is there already", field="file", remedy="name another with --file")
    name = _named(role, context)
    registrar = Registrar(Identity(identity), lambda: datetime.now(UTC))
    with reading_keys(identity):
        try:
            text = registrar.mint_person(Principal(role.value), name[:63], project=context.project, life=life)
        except UnsafeNameError as error:
            raise HerdError.of(
                Code.UNSAFE_NAME, str(error), field="project", remedy="name one with --project"
            ) from None
    write_secret(path, text)
    return bearer(text)
