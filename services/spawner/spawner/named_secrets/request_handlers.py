"""Handles requests about named secrets: set, list, delete."""

from typing import Final

from nacl.public import PrivateKey

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.redacted_values import MIN_SECRET_LENGTH
from sandherd.contracts.requests import DeleteSecret, ListSecrets, SecretDeleted, SecretList, SecretView, SetSecret
from sandherd.contracts.specs import MAX_SECRET_BYTES
from sandherd.contracts.states import TASK_ENDED
from sandherd.sealed_secrets import open_sealed, secret_member
from sandherd.service.requests import IncomingRequest
from spawner.live_state import LiveState
from spawner.named_secrets.secret_record import SecretRecord
from spawner.named_secrets.secret_store import tasks_referencing
from spawner.records.availability import available, unknown

MAX_SECRETS: Final = 100
"""Maximum secrets of a project."""
_MAX_LISTED_TASKS: Final = 20
"""Maximum tasks that the reply to a deletion names."""


class SecretRequestHandler:
    """The handlers of requests about named secrets. No reply contains a value. They raise `ContractError`."""

    def __init__(self, live: LiveState, sealing_key: PrivateKey) -> None:
        """`sealing_key` decrypts values that clients sealed."""
        self._live = live
        self._sealing_key = sealing_key

    async def set_secret(self, incoming: IncomingRequest[SetSecret]) -> SecretView:
        """Store a value, which replaces the previous one."""
        project, request = _single_project(incoming.project), incoming.request
        value = self._decrypt_value(project, request)
        with available("secrets"):
            await self._check_limit(project, request.name)
            record = await self._live.secrets.put(project, request.name, value, request.updated_by)
            return _view(record, self._tasks_using(project, request.name), readable=True)

    async def list_secrets(self, incoming: IncomingRequest[ListSecrets]) -> SecretList:
        """The secrets of a project, or of all projects."""
        with available("secrets"):
            records = await self._live.secrets.all(None if incoming.project == FLEET else incoming.project)
            keys = await self._live.secrets.stored_keys()
        views = [
            _view(one, self._tasks_using(one.project, one.name), readable=one.vault_key in keys) for one in records
        ]
        return SecretList(secrets=views)

    async def delete_secret(self, incoming: IncomingRequest[DeleteSecret]) -> SecretDeleted:
        """Delete a secret. A secret that tasks still need is deleted only with `force`."""
        project, name = _single_project(incoming.project), incoming.request.name
        with available("secrets"):
            await self._live.catch_up()
            tasks = self._tasks_using(project, name)
            if tasks and not incoming.request.force and await self._live.secrets.get(project, name):
                raise _in_use_error(name, tasks)
            if not await self._live.secrets.delete(project, name):
                raise unknown("secret", project, name)
        return SecretDeleted(name=name, tasks=tasks[:_MAX_LISTED_TASKS])

    def _tasks_using(self, project: str, name: str) -> list[str]:
        """The tasks that have not ended and reference the secret."""
        views = [view for view in self._live.task_index.views() if view.project == project]
        return tasks_referencing(
            [(view.task, view.named_secrets) for view in views if view.state not in TASK_ENDED], name
        )

    def _decrypt_value(self, project: str, request: SetSecret) -> str:
        """The value that was sealed for this project and name. Raises `ContractError` for any other value."""
        values = open_sealed(request.sealed, self._sealing_key) or {}
        member = secret_member(project, request.name)
        if set(values) != {member}:
            raise ContractError(
                Code.INVALID_FIELD,
                "the value is sealed for another herd, project or name",
                field="sealed",
                remedy="set it again; update the client if that does not help",
            )
        value = values[member]
        if "\0" in value or not MIN_SECRET_LENGTH <= len(value.encode()) <= MAX_SECRET_BYTES:
            limits = f"{MIN_SECRET_LENGTH} to {MAX_SECRET_BYTES} bytes, and no NUL"
            raise ContractError(
                Code.INVALID_FIELD, f"a secret has {limits}", field="value", remedy="give another value"
            )
        return value

    async def _check_limit(self, project: str, name: str) -> None:
        existing = {record.name for record in await self._live.secrets.all(project)}
        if name not in existing and len(existing) >= MAX_SECRETS:
            raise ContractError(
                Code.REFUSED,
                f"project {project} has {len(existing)} secrets; the maximum is {MAX_SECRETS}",
                field="name",
                remedy="delete a secret that is not needed",
            )


def _single_project(project: str) -> str:
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD, "a secret belongs to one project", field="project", remedy="name one with --project"
        )
    return project


def _view(record: SecretRecord, tasks: list[str], *, readable: bool) -> SecretView:
    return SecretView(
        project=record.project,
        name=record.name,
        created_at=record.created_at,
        updated_at=record.updated_at,
        updated_by=record.updated_by,
        tasks=len(tasks),
        readable=readable,
    )


def _in_use_error(name: str, tasks: list[str]) -> ContractError:
    shown = ", ".join(tasks[:3]) + (" and others" if len(tasks) > 3 else "")
    return ContractError(
        Code.CONFLICT,
        f"secret {name} is needed by {shown}",
        field="name",
        remedy="wait for them, or delete it with --force: attempts that run keep their value, later ones fail",
    )
