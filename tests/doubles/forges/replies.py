"""The responses of a forge: a status, headers and a body."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ABSENT: Final = object()
"""The body of a response that has none; `None` is JSON's null."""


@dataclass
class Reply:
    """A response: JSON, nothing, or raw bytes of another type."""

    status: int
    body: Any = ABSENT
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    content_type: str = "application/json; charset=utf-8"

    @property
    def is_json(self) -> bool:
        """Whether the body, if there is any, is JSON."""
        return self.raw is None

    def encode(self) -> bytes:
        """Encode the body as it is sent."""
        if self.raw is not None:
            return self.raw
        return b"" if self.body is ABSENT else json.dumps(self.body).encode()


class ApiError(Exception):
    """A response that is an error; the code that finds it raises it."""

    def __init__(self, status: int, body: Any = ABSENT, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status}: {body}")
        self.reply = Reply(status, body, dict(headers or {}))
