"""Erases handled commands that contain values of secrets. Removes the values from commands before DEAD stores them."""

import json
from typing import Any, Final

import nats.errors
from nats.js.errors import Error as JetStreamError

from sandherd.bus.connection import Bus, BusError
from sandherd.bus.consumers.outcomes import Delivery
from sandherd.bus.message_erasure import erase
from sandherd.contracts.redacted_values import redacted
from sandherd.contracts.subjects import PREFIX, Principal
from sandherd.telemetry import logs

_MARKERS: Final = (b'"secret_env"', b'"sealed"')
_STREAM: Final = "COMMANDS"
_COMMAND_SUBJECT_PREFIX: Final = f"{PREFIX}.command.{Principal.SPAWNER}."
"""The subject prefix of commands to the spawner. No valid command to another service contains secrets, and other
services may not delete commands."""
_log: Final = logs.get("secret_commands")


async def erase_command(bus: Bus, delivery: Delivery) -> None:
    """Erase a handled command from the broker's files if it contains secrets.

    Other commands are only deleted; their bytes stay in the broker's files for some time. A failure to erase the
    command is only logged, so that the command is acknowledged nevertheless.
    """
    if not delivery.subject.startswith(_COMMAND_SUBJECT_PREFIX) or not carries_secrets(delivery.data):
        return
    try:
        await erase(bus, delivery.stream, delivery.stream_sequence)
    except (BusError, nats.errors.Error, JetStreamError, TimeoutError) as error:
        _log.error("command with secrets not erased", subject=delivery.subject, error=repr(error))


def storable_payload(delivery: Delivery) -> bytes:
    """The part of a message's payload that may be stored as a dead letter."""
    return payload_without_values(delivery.data) if delivery.stream == _STREAM else delivery.data


def carries_secrets(data: bytes) -> bool:
    """Whether a command's payload has values of secret variables, in clear text or sealed."""
    document = _read_document(data) if _is_marked(data) else None
    return _spec_of(document) is not None or _is_sealed(document)


def payload_without_values(data: bytes) -> bytes:
    """The payload without the values of secrets and the contents of files; unchanged if it has no values of secrets.

    A spec without its values is refused if it is submitted again. A retry uses the stored values, if there are any.
    """
    if not carries_secrets(data):
        return data
    document = json.loads(data)
    values = _remove_secrets(document)
    document["data"].pop("sealed", None)
    return json.dumps(_redact(document, values)).encode()


def _redact(document: Any, secrets: list[str]) -> Any:
    """The command without these values. The names of the fields of its envelope, data and spec are not changed."""
    data = document["data"]
    fields = _redact_fields(data, secrets)
    if isinstance(data.get("spec"), dict):
        fields["spec"] = _redact_fields(data["spec"], secrets)
    return _redact_fields(document, secrets) | {"data": fields}


def _redact_fields(document: dict[str, Any], secrets: list[str]) -> dict[str, Any]:
    """The fields without these values; also without short ones, because a dead letter is stored for a long time."""
    return {name: redacted(value, secrets, min_length=1) for name, value in document.items()}


def _remove_secrets(document: Any) -> list[str]:
    """Remove a spec's secrets and the contents of its files; return the values of the secrets."""
    spec = _spec_of(document)
    if spec is None:
        return []
    secret = spec["secret_env"]
    values = [value for name, value in spec.get("env", {}).items() if name in secret and isinstance(value, str)]
    spec["env"] = {name: value for name, value in spec.get("env", {}).items() if name not in secret}
    spec.pop("sealed", None)
    spec["files"] = dict.fromkeys(spec.get("files") or (), "")
    return values


def _is_marked(data: bytes) -> bool:
    return any(mark in data for mark in _MARKERS)


def _is_sealed(document: Any) -> bool:
    """Whether a command has sealed values outside a spec, as a retry may have."""
    data = document.get("data") if isinstance(document, dict) else None
    return isinstance(data, dict) and data.get("sealed") is not None


def _read_document(data: bytes) -> Any:
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
            spec[name] = {}  # malformed: it is removed, because it may contain secrets
    return spec
