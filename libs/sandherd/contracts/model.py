"""The base class of all contracts, and their types of numbers and times, limited so that every value can be stored.

The largest whole number is the one that every JSON reader represents exactly (RFC 7493 §2.2); it also fits a `bigint`
of Postgres. Times are limited because year 1 with an offset is a date that Python can't convert to UTC.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

MAX_WHOLE: Final = 2**53 - 1
MAX_TYPES: Final = 64
"""Maximum number of types in a filter of events."""

Whole = Annotated[int, Field(ge=-MAX_WHOLE, le=MAX_WHOLE)]
Count = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Number = Annotated[int, Field(ge=1, le=MAX_WHOLE)]
"""An ordinal number, from 1."""
Attempt = Annotated[int, Field(ge=1, le=2**31 - 1)]
MicroDollars = Annotated[int, Field(ge=0, le=MAX_WHOLE, description="Money in millionths of a US dollar.")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Moment = Annotated[AwareDatetime, Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(2200, 1, 1, tzinfo=UTC))]


class Model(BaseModel):
    """A model whose validator is built on first use: a program imports all contracts, and uses a few."""

    model_config = ConfigDict(defer_build=True)
