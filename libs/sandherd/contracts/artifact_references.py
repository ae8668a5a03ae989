"""The artifacts that an event's data refers to."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from sandherd.contracts.events.base import ArtifactRef


def artifact_references(data: BaseModel, path: str = "") -> Iterator[tuple[str, ArtifactRef]]:
    """The references in an event's data, by their fields.

    Only where the contract declares them: an agent may write something alike into what its tools are given.
    """
    for name in type(data).model_fields:
        value: Any = getattr(data, name)
        if isinstance(value, ArtifactRef):
            yield f"{path}{name}", value
        elif isinstance(value, BaseModel):
            yield from artifact_references(value, f"{path}{name}.")
        elif isinstance(value, dict) and name == "artifacts":
            yield from ((key, one) for key, one in value.items() if isinstance(one, ArtifactRef))
