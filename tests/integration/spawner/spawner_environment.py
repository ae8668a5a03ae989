"""Environment variables for spawners that run as separate processes."""

import json
import os
from typing import Any

from pydantic import BaseModel

from sandherd.settings import Settings, environment_names


def environment(settings: Settings) -> dict[str, str]:
    """The environment variables for these settings."""
    named = {env.name: getattr(settings, field) for field, env in environment_names().items()}
    return {**os.environ, **{name: text_of(value) for name, value in named.items() if value is not None}}


def text_of(value: Any) -> str:
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if isinstance(value, dict):
        return json.dumps(
            {name: item.model_dump() if isinstance(item, BaseModel) else item for name, item in value.items()}
        )
    if isinstance(value, frozenset):
        return ",".join(sorted(map(str, value)))
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
