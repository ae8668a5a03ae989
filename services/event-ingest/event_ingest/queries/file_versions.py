"""`file_versions`: how did the files of a sandbox change?"""

import json
from typing import Any, Final

from event_ingest.database import Connection
from event_ingest.queries.pages import Conditions, fit_page, limited_statement
from event_ingest.queries.transcript import visible_projects
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.contracts.requests import FileVersion, FileVersions, ListFileVersions
from sandherd.service.cursors import read_cursor, write_cursor

_FIRST_CONDITION_PARAMETER: Final = 5
_POSITION_TYPES: Final = (int,)
"""The types of the values in a cursor."""
_COPIED_FIELDS: Final = (
    "file_path", "change_type", "previous_path", "turn", "tool_use_id", "binary", "lines_added", "lines_removed",
    "content_sha256",
)  # fmt: skip
# A version's number counts all changes of its path. So all edits of the sandbox are read, not only those of the page.
_EDITS: Final = f"""
with edits as materialized (
    select id, stream_sequence, time, envelope #>> '{{data,file_path}}' as path from events
    where entity = $2 and project || '' = $1 and type = '{AgentFileEdited.type}'
), numbered as (
    select *, row_number() over (partition by path order by stream_sequence, id) as number from edits
)
select n.id, n.stream_sequence, n.time, n.number, e.envelope, e.size
from numbered n join events e on e.id = n.id where true
"""  # noqa: S608  # constant names


async def list_file_versions(
    connection: Connection, request: ListFileVersions, project: str, max_bytes: int
) -> FileVersions:
    """A page of versions. Raises `ContractError` for an unknown sandbox, or an invalid cursor."""
    after = read_cursor(request, project, request.cursor, _POSITION_TYPES)
    # If several projects have a sandbox of this name, the first project is used.
    scope = (await visible_projects(connection, request.sandbox, project))[0], request.sandbox
    conditions = Conditions(_FIRST_CONDITION_PARAMETER)
    if request.file_path is not None:
        conditions.add("n.path = {}", request.file_path)
    if after is not None:
        conditions.add("n.stream_sequence " + ("<" if request.newest_first else ">") + " {}::bigint", after[0])
    order = "stream_sequence desc" if request.newest_first else "stream_sequence"
    statement = limited_statement(f"{_EDITS}{conditions}", order, "$3", "$4")
    rows = await connection.fetch(statement, *scope, request.limit, max_bytes, *conditions.values)
    available = rows[0]["available"] if rows else 0
    page = await fit_page(
        rows,
        lambda row: _version(row, diffs=request.diffs),
        limit=request.limit,
        max_bytes=max_bytes,
        available=available,
    )
    position = [page.rows[-1]["stream_sequence"]] if page.has_more else None
    return FileVersions(versions=page.items, next_cursor=write_cursor(request, project, position) if position else None)


def _version(row: Any, *, diffs: bool) -> FileVersion:
    data = json.loads(row["envelope"])["data"]
    copied = {name: data[name] for name in _COPIED_FIELDS if data.get(name) is not None}
    full_diff = data.get("full_diff")
    diff = data.get("diff_preview") or None if full_diff is None else full_diff
    return FileVersion(
        number=row["number"],
        time=row["time"],
        stream_sequence=row["stream_sequence"],
        diff=diff if diffs else None,
        diff_ref=data.get("full_diff_ref") if diffs else None,
        diff_complete=full_diff is not None or data.get("full_diff_ref") is not None,
        **copied,
    )
