"""The terminal of a command: its size and its input. The fields are those of the clients' and the workers' requests."""

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from sandherd.contracts.model import Count, Model
from sandherd.contracts.names import SafeName

INPUT_BYTES: Final = 4096
"""Maximum number of bytes of input in one request: as many as a terminal holds until a program reads them."""


class TerminalSize(Model):
    """The size of a terminal, in characters."""

    rows: Annotated[int, Field(ge=1, le=10_000)]
    columns: Annotated[int, Field(ge=1, le=10_000)]


class ExecInputFields(Model):
    """Input for a command that has a terminal, or the terminal's new size. Repeated bytes are written once."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    exec: SafeName
    offset: Count = 0
    """Number of bytes of input that precede `data`. The reply is a `conflict` if the command has accepted fewer bytes.
    """
    data: Annotated[bytes, Field(max_length=INPUT_BYTES)] = b""
    size: TerminalSize | None = None


class InputAccepted(Model):
    """How much input a command has accepted. It may be less than was sent, because a program reads at its own speed."""

    exec: SafeName
    accepted: Count
    """Number of bytes that were accepted since its start: the `offset` of the next request."""
