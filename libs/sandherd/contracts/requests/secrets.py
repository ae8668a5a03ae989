"""Requests about named secrets: stored for a project, referenced by name in specs, never returned."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from sandherd.contracts.commands import Note
from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.specs import Sealed, SecretName


class SecretView(Model):
    """A named secret without its value."""

    project: SafeName
    name: SecretName
    created_at: Moment
    updated_at: Moment
    updated_by: Note | None = None
    """Who stored the value, according to the client."""
    tasks: Count = 0
    """Number of tasks that have not ended and reference the secret."""
    readable: bool = True
    """Whether its value can be used. After a restore of a backup without secrets it can't: set the secret again."""


class SecretList(Model):
    """The named secrets of a project, by name."""

    secrets: list[SecretView]


class SetSecret(Request[SecretView]):
    """Store a value under a name, in place of its previous value."""

    Answer: ClassVar[type[BaseModel]] = SecretView
    type: ClassVar[str] = "spawner.set_secret"
    name: SecretName
    sealed: Sealed
    """The value, encrypted for the spawner: a sealed box of a JSON object with the one member `<project>/<name>`, so
    that it can't be stored for another project or under another name."""
    updated_by: Annotated[Note, Field(max_length=200)] | None = None


class ListSecrets(Request[SecretList]):
    """List the named secrets."""

    Answer: ClassVar[type[BaseModel]] = SecretList
    type: ClassVar[str] = "spawner.secrets"


class SecretDeleted(Model):
    """A named secret was deleted, and its value erased."""

    name: SecretName
    tasks: list[SafeName] = Field(default_factory=list)
    """Tasks that have not ended and reference it: their next attempts fail. At most 20 are listed."""


class DeleteSecret(Request[SecretDeleted]):
    """Delete a named secret, and erase its value."""

    Answer: ClassVar[type[BaseModel]] = SecretDeleted
    type: ClassVar[str] = "spawner.delete_secret"
    name: SecretName
    force: bool = False
    """Whether to delete it even if tasks that have not ended reference it; otherwise the reply is a `conflict`."""
