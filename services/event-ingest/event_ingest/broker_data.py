"""Checks that the broker still has the stream from which the history was stored."""

from typing import Any, Final

from event_ingest.database import Database
from event_ingest.ingest import CONSUMER
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import BROKER_DATA
from sandherd.contracts.streams import BY_CONSUMER

# The index begins with the project, so the last entry of each project is found without reading the others.
_LAST_STORED: Final = """
select coalesce(max(last), 0) from (select distinct project from sources) p,
    lateral (select max(stream_sequence) as last from events e where e.project = p.project) found
"""


async def check_broker_data(database: Database, bus: Bus) -> dict[str, str | None]:
    """By name of the check, the problem; None if the stream is at least as long as the history.

    The result is empty if the broker or the database does not respond.
    """
    stream = BY_CONSUMER[CONSUMER].stream
    try:
        async with database.reading() as connection:
            stored: int = await connection.fetchval(_LAST_STORED)
        info: Any = await bus.js.stream_info(stream)
    except (*BROKER_ERRORS, ContractError):
        return {}  # other checks report that the database or the stream is unavailable
    last: int = info.state.last_seq
    if last >= stored:
        return {BROKER_DATA: None}
    return {
        BROKER_DATA: f"{stream} ends at sequence {last}, and the history has events up to {stored}: the broker's data "
        f"was deleted or replaced by older data, with the tasks that had not ended"
    }
