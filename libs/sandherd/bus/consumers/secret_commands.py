"""Commands that contain values of secrets: recognised by their payload, stored elsewhere only without the values."""

import json
from typing import Any, Final

import nats.errors
from nats.js.errors import Error as JetStreamError

from sandherd.bus.connection import Bus, BusError
from sandherd.bus.consumers.outcomes import Delivery
from sandherd.bus.message_erasure import erase
from sandherd.contracts.subjects import PREFIX, Principal
from sandherd.telemetry import logs

_MARKS: Final = (b'"secret_env"', b'"sealed"')
_STREAM: Final = "COMMANDS"
_SPECS: Final = f"{PREFIX}.command.{Principal.SPAWNER}."
"""Only these commands contain specs. Other services may not delete commands, and no valid
command for them contains secrets."""
_log: Final = logs.get("secret_commands")


async def erase_command(bus: Bus, delivery: Delivery) -> None:
    """Erase a handled command with secrets from the broker's files; bytes of other commands stay there for a while.

    If the broker fails to erase it, the command is still acknowledged: its sender must not wait for the erasure.
    """
    if not delivery.subject.startswith(_SPECS) or not carries_secrets(delivery.data):
        return
    try:
        await erase(bus, delivery.stream, delivery.stream_sequence)
    except (BusError, nats.errors.Error, JetStreamError, TimeoutError) as error:
        _log.error("command with secrets not erased", subject=delivery.subject, error=repr(error))


def storable(delivery: Delivery) -> bytes:
    """The part of a message's payload that may be stored as a dead letter."""
    return without_values(delivery.data) if delivery.stream == _STREAM else delivery.data


def carries_secrets(data: bytes) -> bool:
    """Whether a command's payload has values of secret variables, in clear text or sealed."""
    document = _read(data) if _is_marked(data) else None
    return _spec_of(document) is not None or _is_sealed(document)


def without_values(data: bytes) -> bytes:
    """The payload without its files and the values of its secrets; a payload without secrets unchanged.

    The result is refused if it is submitted again, because it names secrets whose values are missing.
    """
    if not carries_secrets(data):
        return data
    document = json.loads(data)
    values = _removed(document)
    document["data"].pop("sealed", None)
    return json.dumps(_hidden(document, values)).encode()


def _removed(document: Any) -> list[str]:
    """Remove a spec's secrets and the contents of its files; return the values of the secrets."""
    spec = _spec_of(document)
    if spec is None:
        return []
    secret = spec["secret_env"]
    values = [value for name, value in spec.get("env", {}).items() if name in secret and isinstance(value, str)]
    spec["env"] = {name: value for name, value in spec.get("env", {}).items() if name not in secret}
    spec.pop("sealed", None)
    spec["files"] = dict.fromkeys(spec.get("files") or (), "")
    return [value for value in values if value]


def _is_marked(data: bytes) -> bool:
    return any(mark in data for mark in _MARKS)


def _is_sealed(document: Any) -> bool:
    """Whether it is a command with sealed values outside a spec, such as a retry."""
    data = document.get("data") if isinstance(document, dict) else None
    return isinstance(data, dict) and data.get("sealed") is not None


def _read(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _spec_of(document: Any) -> dict[str, Any] | None:
    """The spec of a command with secret variables, even if the command is invalid otherwise."""
    data = document.get("data") if isinstance(document, dict) else None
    spec = data.get("spec") if isinstance(data, dict) else None
    if not isinstance(spec, dict) or not isinstance(spec.get("secret_env"), list) or not spec["secret_env"]:
        return None
    for name in ("env", "files"):
        if not isinstance(spec.get(name, {}), dict):
            spec[name] = {}  # left out, because secrets can't be distinguished in it
    return spec


def _hidden(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "[redacted]"[: len(secret)])
        return value
    if isinstance(value, dict):
        return {name: _hidden(item, secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item, secrets) for item in value]
    return value
