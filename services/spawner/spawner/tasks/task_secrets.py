"""A task's secrets: redacted in events and views, and erased after the task has ended."""

from typing import Any

from sandherd.contracts.commands import SandboxSpec, TaskSpec
from sandherd.contracts.continuous import Continuous
from sandherd.contracts.harnesses import free_text_fields
from sandherd.contracts.redacted_values import redacted


def has_secrets(spec: SandboxSpec) -> bool:
    """Whether the spec contains values of secrets. Erased values are empty."""
    return any(spec.env.get(name) for name in spec.secret_env)


def hidden(value: Any, spec: SandboxSpec) -> Any:
    """A JSON-like value without the values of the task's secrets in its strings and keys. No string gets longer."""
    return redacted(value, (spec.env[name] for name in spec.secret_env))


def without_secrets(spec: TaskSpec, *, with_files: bool = False) -> TaskSpec:
    """The spec without values of secrets. `with_files` retains the content of files that contain none of them."""
    files = _files_without_secrets(spec) if with_files else {}
    return spec.model_copy(
        update={
            "text": hidden(spec.text, spec),
            "harness": spec.harness.model_copy(update=hidden(free_text_fields(spec.harness), spec)),
            "continuous": _continuous_without_secrets(spec),
            "env": {name: "" if name in spec.secret_env else hidden(text, spec) for name, text in spec.env.items()},
            "files": dict.fromkeys(spec.files, "") | files,
        }
    )


def as_submitted(spec: TaskSpec) -> TaskSpec:
    """The spec for a user who submits it again: without values of secrets, plain or sealed."""
    return without_secrets(spec, with_files=True).model_copy(update={"sealed": None})


def fields_with_secrets(spec: TaskSpec) -> tuple[str, ...]:
    """Names of the fields that contain the value of a secret outside its own variable. Erasing it damages them."""
    plain = {name: text for name, text in spec.env.items() if name not in spec.secret_env}
    read = {
        "text": spec.text,
        "harness": free_text_fields(spec.harness),
        "continuous": spec.continuous.model_dump() if spec.continuous else None,
        "env": plain,
        "files": spec.files,
    }
    return tuple(name for name, value in read.items() if hidden(value, spec) != value)


def _files_without_secrets(spec: TaskSpec) -> dict[str, str]:
    return {name: text for name, text in spec.files.items() if hidden(text, spec) == text}


def sandbox_without_secrets(spec: SandboxSpec) -> SandboxSpec:
    """The spec of a sandbox without a task, without values of secrets; the content of all its files is erased."""
    env = {name: "" if name in spec.secret_env else hidden(text, spec) for name, text in spec.env.items()}
    return spec.model_copy(update={"env": env, "files": dict.fromkeys(spec.files, "")})


def _continuous_without_secrets(spec: TaskSpec) -> Continuous | None:
    if spec.continuous is None:
        return None
    return Continuous.model_validate(hidden(spec.continuous.model_dump(), spec))
