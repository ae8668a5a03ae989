"""Uploads the base branch of a local repository, for a task that is submitted next."""

import tempfile

from sandherd.client.connection import Connection
from sandherd.client.errors import validated
from sandherd.client.repositories.local import LocalRepository, write_bundle
from sandherd.client.sandboxes import transfer
from sandherd.client.sandboxes.transfer import OnTransfer
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.repositories import Repository


async def upload(
    connection: Connection, task: str, repository: LocalRepository, limit: int | None, on_progress: OnTransfer
) -> Repository:
    """Upload the base branch as an artifact of `task`, or of `SHARED_BUNDLES`. Returns the spec's `repository`.

    Raises `HerdError`, also if the bundle has more than `limit` bytes.
    """
    with tempfile.TemporaryFile() as file:
        await write_bundle(repository, file, limit)
        content = transfer.bundle_source(file)
        bundle = await transfer.store(connection, connection.project, task, content, report=on_progress)
    return of_bundle(repository, bundle)


def of_bundle(repository: LocalRepository, bundle: ArtifactRef) -> Repository:
    """The field `repository` of a task spec, for a task that begins from this bundle of a local repository."""
    options = repository.source.options() | {"base": repository.base}
    return validated(Repository, **options, bundle=bundle, label=repository.label, push=False)
