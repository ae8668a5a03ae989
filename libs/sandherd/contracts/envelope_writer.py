"""Writes envelopes of one source, which mostly differ only in id, time, sequence and `data`.

The common part is validated and written once for each type. This avoids a validator for the whole envelope of each
type. The document is the same as that of `Envelope.to_json`.
"""

from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_json

from sandherd.contracts.envelope import MAX_SEQUENCE, build_validator, check_size, wrap, write
from sandherd.contracts.model import Model

_ID: Final = UUID(int=0)
_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST_TIME: Final = datetime(2200, 1, 1, tzinfo=UTC)


class _NoData(Model):
    """A placeholder for the `data` of any type."""


def prepare() -> None:
    """Build the validator of the common part now, instead of with the first envelope."""
    build_validator(_NoData)


class EnvelopeWriter:
    """Writes the envelopes of one source about one entity. They share `attributes`, which are arguments of `wrap`."""

    def __init__(self, **attributes: Any) -> None:
        self._attributes: Final = attributes
        self._parts: Final[dict[str, tuple[bytes, ...]]] = {}

    def document(self, data: BaseModel, event_type: str, *, id: UUID, time: datetime, sequence: int) -> bytes:
        """The envelope as it is sent on the wire. Raises what `wrap` and `Envelope.to_json` raise."""
        return self.enclose(write(data), event_type, id=id, time=time, sequence=sequence)

    def enclose(self, data: bytes, event_type: str, *, id: UUID, time: datetime, sequence: int) -> bytes:
        """The envelope of `data` that is already serialised. Raises what `document` raises."""
        parts = self._parts.get(event_type)
        if parts is None:
            parts = self._parts[event_type] = self._split(event_type)
        if not 0 < sequence <= MAX_SEQUENCE or time.tzinfo is not UTC or not _TIME <= time < _LATEST_TIME:
            # Raises if one of them is invalid, except for a time in another zone.
            wrap(_NoData(), event_type, id=id, time=time, sequence=sequence, **self._attributes)
        before_id, before_time, before_sequence, before_data = parts
        start = (before_id, str(id).encode(), before_time, to_json(time))
        document = b"".join((*start, before_sequence, b"%d" % sequence, before_data, data, b"}"))
        check_size(document)
        return document

    def _split(self, event_type: str) -> tuple[bytes, ...]:
        """The parts of a document of this type that surround its id, time, sequence and `data`."""
        envelope = wrap(_NoData(), event_type, id=_ID, time=_TIME, sequence=MAX_SEQUENCE, **self._attributes)
        before_id, document = envelope.to_json().split(str(_ID).encode(), 1)
        before_time, document = document.split(to_json(_TIME), 1)
        before_sequence, document = document.split(b"%d" % MAX_SEQUENCE, 1)
        return before_id, before_time, before_sequence, document.removesuffix(b"{}}")
