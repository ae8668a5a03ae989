"""Numbers and moments: bounded, so that whatever is read can also be kept and answered.

The largest whole number is what every JSON reader holds exactly (RFC 7493 §2.2); it also fits a `bigint` of Postgres.
Moments are bounded because year 1 with an offset is a date that Python can't turn into UTC.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AwareDatetime, Field

MAX_WHOLE: Final = 2**53 - 1

Whole = Annotated[int, Field(ge=-MAX_WHOLE, le=MAX_WHOLE)]
Count = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Number = Annotated[int, Field(ge=1, le=MAX_WHOLE)]
"""A place in a row, from 1."""
Attempt = Annotated[int, Field(ge=1, le=2**31 - 1)]
MicroDollars = Annotated[int, Field(ge=0, le=MAX_WHOLE, description="Money in millionths of a US dollar.")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Moment = Annotated[AwareDatetime, Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(2200, 1, 1, tzinfo=UTC))]
