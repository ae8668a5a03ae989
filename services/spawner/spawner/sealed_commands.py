"""Opens the values of secrets that a client has sealed in a command."""

from collections.abc import Mapping
from typing import Any

from nacl.public import PrivateKey

from sandherd.contracts.commands import RetryTask, SandboxSpec, TaskSpec
from sandherd.contracts.envelope import Envelope
from sandherd.sealed_secrets import open_sealed
from spawner.resolving import Refusal
from spawner.tasks.retry import with_values


def unsealed(command: Envelope[Any], key: PrivateKey) -> Envelope[Any]:
    """The command with its secrets' values; as it is if it has none sealed, or was sealed for another herd.

    Only values that the spec names as secret are taken. One that stays sealed is refused (`resolving.resolve`).
    """
    spec = getattr(command.data, "spec", None)
    if not isinstance(spec, SandboxSpec) or spec.sealed is None:
        return command
    values = open_sealed(spec.sealed, key)
    if values is None or set(values) != spec.secret_env:
        return command
    opened = spec.model_copy(update={"env": {**spec.env, **values}, "sealed": None})
    try:
        whole = type(spec).model_validate(opened.model_dump())
    except ValueError:  # what was sealed breaks the contract
        return command
    return command.model_copy(update={"data": command.data.model_copy(update={"spec": whole})})


def retry_values(retry: RetryTask, spec: TaskSpec, key: PrivateKey) -> Mapping[str, str] | Refusal:
    """The new values of secret variables that a retry brings, or why they can't be taken. The refusal has no value."""
    values = {} if retry.sealed is None else open_sealed(retry.sealed, key)
    if values is None:
        return Refusal("its secrets are sealed for another herd", "spec.sealed")
    try:
        with_values(spec, values)
    except ValueError:
        return Refusal("a value can't be a variable's: at most 32,000 characters, and no NUL", "spec.secret_env")
    return values
