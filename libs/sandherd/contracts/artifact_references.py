"""The artifacts that an event's data refers to."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from sandherd.contracts.events.base import ArtifactRef


def artifact_references(data: BaseModel, path: str = "") -> Iterator[tuple[str, ArtifactRef]]:
    """The references to artifacts in an event's data, each with the path of its field.

    Only fields that the contract declares as references are read: the input of a tool, which an agent writes, may
    contain an object that looks like a reference.
    """
    for name in type(data).model_fields:
        value: Any = getattr(data, name)
        if isinstance(value, ArtifactRef):
            yield f"{path}{name}", value
        elif isinstance(value, BaseModel):
            yield from artifact_references(value, f"{path}{name}.")
        elif isinstance(value, dict) and name == "artifacts":
            yield from ((key, item) for key, item in value.items() if isinstance(item, ArtifactRef))
