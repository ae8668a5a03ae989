"""A task's secrets: kept out of what the spawner says and shows, and forgotten once the task has ended."""

from typing import Any, Final

from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.continuous import Continuous
from sandherd.contracts.harnesses import words

MARK: Final = "[redacted]"
_SHORTEST: Final = 4
"""What is shorter can't be told from ordinary text; the worker has the same rule."""


def hidden(value: Any, spec: TaskSpec) -> Any:
    """A JSON-like value without the values of the task's secrets in its strings and keys. No string gets longer."""
    found = {spec.env[name] for name in spec.secret_env if len(spec.env[name]) >= _SHORTEST}
    return _replaced(value, sorted(found, key=len, reverse=True)) if found else value


def forgotten(spec: TaskSpec) -> TaskSpec:
    """The task without its secrets and what its files hold: it is still shown, and never run again."""
    return spec.model_copy(
        update={
            "text": hidden(spec.text, spec),
            "harness": spec.harness.model_copy(update=hidden(words(spec.harness), spec)),
            "continuous": _without(spec),
            "env": {name: "" if name in spec.secret_env else hidden(text, spec) for name, text in spec.env.items()},
            "files": dict.fromkeys(spec.files, ""),
        }
    )


def _without(spec: TaskSpec) -> Continuous | None:
    if spec.continuous is None:
        return None
    return Continuous.model_validate(hidden(spec.continuous.model_dump(), spec))


def _replaced(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MARK[: len(secret)])
        return value
    if isinstance(value, dict):
        return {_replaced(name, secrets): _replaced(item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(item, secrets) for item in value]
    return value
