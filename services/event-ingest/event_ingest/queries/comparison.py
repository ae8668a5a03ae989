"""`comparison`: how do two sandboxes differ in what their agents did?"""

from datetime import datetime
from typing import Any, Final

from event_ingest.comparisons import ComparedSide, add_rows, compare
from event_ingest.database import Connection
from event_ingest.event_rows import ERRORS
from event_ingest.queries.transcript import visible_projects
from sandherd.contracts.events.agent import AgentTurnStarted, AgentUsage
from sandherd.contracts.events.tools import AgentFileEdited, AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.requests import Comparison, GetComparison, Usage
from sandherd.contracts.requests.comparison import MAX_COMPARED, ComparedSandbox
from sandherd.contracts.states import SANDBOX_ENDED

# Types of events, or SQL lists of types.
_CALL: Final = AgentToolUse.type
_EDIT: Final = AgentFileEdited.type
_RESULTS: Final = f"'{AgentToolResult.type}', '{AgentToolCompleted.type}'"
_ERRORS: Final = ", ".join(f"'{name}'" for name in ERRORS)
_MAX_NAME: Final = 300
"""Maximum characters of a name that a sandbox has chosen, because a reply has many names."""
_SANDBOX: Final = """
select task, attempt, state, state_at from sandboxes where project = $1 and sandbox = $2
"""
_EVENTS_BY_TYPE: Final = """
select type, count(*) as number, min(time) as first_event_at, max(time) as last_event_at
from events where entity = $2 and project || '' = $1 group by type
"""


def _bigint(expression: str) -> str:
    return f"least(coalesce({expression}, 0), {MAX_WHOLE})::bigint"


# Each event is parsed once. A sandbox may choose any numbers and names, so sums are limited to what a reply can have.
# The reason for `project || ''` is in `event_query`.
_ROWS: Final = f"""
with relevant as materialized (
    select e.type, e.time, e.stream_sequence, coalesce(d.turn, 0) as turn, left(d.tool, {_MAX_NAME}) as tool,
        left(d.tool_use_id, {_MAX_NAME}) as tool_use_id, d.is_error, left(d.file_path, {_MAX_NAME}) as file_path,
        d.change_type, d.content_sha256, d.lines_added, d.lines_removed, d.input_tokens, d.output_tokens,
        d.cost_micro_usd
    from events e cross join lateral json_to_record(e.envelope -> 'data') as d (
        turn numeric, tool text, tool_use_id text, is_error boolean, file_path text, change_type text,
        content_sha256 text, lines_added numeric, lines_removed numeric, input_tokens numeric, output_tokens numeric,
        cost_micro_usd numeric)
    where e.entity = $2 and e.project || '' = $1
        and e.type in ('{AgentTurnStarted.type}', '{AgentUsage.type}', '{_CALL}', '{_EDIT}', {_RESULTS}, {_ERRORS})
), calls as (
    select max(tool) filter (where type = '{_CALL}') as tool, min(time) filter (where type = '{_CALL}') as began,
        min(time) filter (where type in ({_RESULTS})) as ended, bool_or(is_error) as failed from relevant
    where type in ('{_CALL}', {_RESULTS}) and tool_use_id is not null group by tool_use_id
), turns as (
    select 'turn' as kind, turn::text as key, count(*) filter (where type = '{_CALL}') as calls,
        count(*) filter (where type in ({_ERRORS})) as errors,
        extract(epoch from max(time) - min(time))::double precision as seconds,
        {_bigint("sum(input_tokens)")} as first_amount, {_bigint("sum(output_tokens)")} as second_amount,
        {_bigint("sum(cost_micro_usd)")} as cost_micro_usd, null::text as change_type, null::text as content_sha256
    from relevant where turn > 0 group by turn order by relevant.turn limit {MAX_COMPARED + 1}
), tools as (
    select 'tool', tool, count(*), count(*) filter (where failed),
        coalesce(sum(greatest(extract(epoch from ended - began), 0)), 0)::double precision,
        0::bigint, 0::bigint, 0::bigint, null, null
    from calls where tool is not null group by tool
    order by count(*) desc, tool limit {MAX_COMPARED + 1}
), files as (
    select 'file', file_path, count(*), 0::bigint, 0::double precision, {_bigint("sum(lines_added)")},
        {_bigint("sum(lines_removed)")}, 0::bigint, (array_agg(change_type order by stream_sequence desc))[1],
        (array_agg(content_sha256 order by stream_sequence desc))[1]
    from relevant where type = '{_EDIT}' group by file_path order by count(*) desc, file_path limit {MAX_COMPARED + 1}
)
select * from turns union all select * from tools union all select * from files
"""  # noqa: S608  # constant names
_AMOUNTS: Final = ", ".join(
    f"{_bigint(f'''sum((data ->> '{name}')::numeric)''')} as {name}" for name in Usage.model_fields
)
_TOTALS: Final = f"""
with spent as materialized (
    select envelope -> 'data' as data from events
    where entity = $2 and project || '' = $1 and type = '{AgentUsage.type}'
) select {_AMOUNTS} from spent
"""  # noqa: S608  # constant names


async def compare_sandboxes(connection: Connection, request: GetComparison, project: str, max_bytes: int) -> Comparison:
    """Compare two sandboxes. Raises `ContractError` for an unknown sandbox."""
    sides = [await _read_side(connection, name, project) for name in (request.first, request.second)]
    return compare(sides[0], sides[1], max_bytes)


def _end_time(sandbox_row: Any, last: datetime) -> datetime:
    """The time of the last event, or when the sandbox ended if that is earlier: later events do not count."""
    ended_at = sandbox_row["state_at"] if sandbox_row and sandbox_row["state"] in SANDBOX_ENDED else None
    return last if ended_at is None else min(last, ended_at)


async def _read_side(connection: Connection, sandbox: str, project: str) -> ComparedSide:
    # If several projects have a sandbox of this name, the first project is used.
    scope = (await visible_projects(connection, sandbox, project))[0], sandbox
    type_rows = await connection.fetch(_EVENTS_BY_TYPE, *scope)
    rows = await connection.fetch(_ROWS, *scope)
    sandbox_row = await connection.fetchrow(_SANDBOX, *scope)
    totals: Any = await connection.fetchrow(_TOTALS, *scope)
    types = {row["type"]: row["number"] for row in type_rows}
    first = min(row["first_event_at"] for row in type_rows)
    last = max(row["last_event_at"] for row in type_rows)
    files = [row for row in rows if row["kind"] == "file"]
    compared = ComparedSandbox(
        sandbox=sandbox,
        project=scope[0],
        task=sandbox_row and sandbox_row["task"],
        attempt=sandbox_row["attempt"] if sandbox_row else 1,
        state=sandbox_row and sandbox_row["state"],
        events=sum(types.values()),
        first_event_at=first,
        last_event_at=last,
        seconds=max(0.0, (_end_time(sandbox_row, last) - first).total_seconds()),
        turns=types.get(AgentTurnStarted.type, 0),
        tool_calls=types.get(_CALL, 0),
        errors=sum(types.get(name, 0) for name in ERRORS),
        lines_added=min(MAX_WHOLE, sum(row["first_amount"] for row in files)),
        lines_removed=min(MAX_WHOLE, sum(row["second_amount"] for row in files)),
        **dict(totals),
    )
    return add_rows(ComparedSide(compared, types), rows)
