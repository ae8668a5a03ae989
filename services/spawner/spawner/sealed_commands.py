"""Decrypts the values of secrets that a client sealed in a command."""

from collections.abc import Mapping
from typing import Any

from nacl.public import PrivateKey

from sandherd.contracts.commands import RetryTask, SandboxSpec, TaskSpec
from sandherd.contracts.envelope import Envelope
from sandherd.sealed_secrets import open_sealed
from spawner.spec_resolution import Refusal
from spawner.tasks.task_retry import with_values


def unsealed(command: Envelope[Any], key: PrivateKey) -> Envelope[Any]:
    """The command with its secrets' values; unchanged if none are sealed, or if they were sealed for another herd.

    The values are used only if their names equal the spec's `secret_env` and the result is valid. A spec that remains
    sealed is refused (`spec_resolution.resolve`).
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
    except ValueError:  # the sealed values violate the contract
        return command
    return command.model_copy(update={"data": command.data.model_copy(update={"spec": whole})})


def retry_values(retry: RetryTask, spec: TaskSpec, key: PrivateKey) -> Mapping[str, str] | Refusal:
    """The new values of a retry's secret variables, or why they are invalid. The refusal contains no value."""
    values = {} if retry.sealed is None else open_sealed(retry.sealed, key)
    if values is None:
        return Refusal("its secrets are sealed for another herd", "spec.sealed")
    try:
        with_values(spec, values)
    except ValueError:
        return Refusal("invalid value of a secret variable: at most 32,000 characters, without NUL", "spec.secret_env")
    return values
