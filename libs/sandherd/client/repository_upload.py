"""Uploads the base branch of a local repository, for a task that is submitted next."""

import tempfile

from sandherd.client.connection import Connection
from sandherd.client.errors import made
from sandherd.client.repositories.local import LocalRepository, write_bundle
from sandherd.client.sandboxes import transfer
from sandherd.client.sandboxes.transfer import Moved
from sandherd.contracts.repositories import Repository


async def upload(
    connection: Connection, task: str, repository: LocalRepository, limit: int | None, moved: Moved
) -> Repository:
    """Upload it under the task's name. Returns the `repository` of its spec.

    Raises `HerdError`, also for more than `limit` bytes.
    """
    with tempfile.TemporaryFile() as file:
        await write_bundle(repository, file, limit)
        bundle = await transfer.store(connection, connection.project, task, transfer.bundled_as(file), moved=moved)
    wanted = repository.source.options() | {"base": repository.base}
    return made(Repository, **wanted, bundle=bundle, label=repository.label, push=False)
