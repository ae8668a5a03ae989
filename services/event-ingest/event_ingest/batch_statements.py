"""The statements that store a batch. Each takes one list per column.

Each statement sorts its rows, so that replicas lock rows in the same order and can't deadlock.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from event_ingest.batch_totals import RATE_TYPES, SOURCE_TYPES
from event_ingest.event_rows import COLUMNS, COUNTED_TYPES
from event_ingest.projections import CLOSING, CLOSING_ALONE
from event_ingest.read_models import ApprovalRow, MessageRow, SandboxRow, TaskRow
from sandherd.contracts.events.agent import AgentHeartbeat, AgentUsage
from sandherd.contracts.model import MAX_WHOLE


def _arrays(types: Iterable[str], first: int) -> str:
    """Parameters that are lists of these types, with numbers from `first`."""
    return ", ".join(f"${number}::{sql_type}[]" for number, sql_type in enumerate(types, first))


EVENT_SOURCE: Final = "event_source(source, entity)"
"""The source of an event, whichever form its row has (`short_rows`)."""
_PARAMETERS: Final = _arrays((sql_type for _, sql_type in COLUMNS), 1)
_NAMES: Final = ", ".join(name for name, _ in COLUMNS)
_VALUES: Final = _NAMES.replace("envelope", "envelope::json")


def _quoted_list(types: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in types)


_CLOSING: Final = _quoted_list(CLOSING)
_ALONE: Final = _quoted_list(CLOSING_ALONE)
_CLOSING_ALONE: Final = f"type in ({_ALONE}) and sequence = 1"
_COUNTS: Final = ", ".join(
    f"count(*) filter (where type in ({_quoted_list(types)}))" for types in COUNTED_TYPES.values()
)

# `writer` distributes the counts of a minute over rows, so that concurrent batches seldom wait for the same row.
_ADD_RATES: Final = f"""
    on conflict (project, minute, writer) do update set
        events = r.events + excluded.events,
        turns = r.turns + excluded.turns,
        tool_calls = r.tool_calls + excluded.tool_calls,
        errors = r.errors + excluded.errors,
        cost_micro_usd = least(r.cost_micro_usd + excluded.cost_micro_usd, {MAX_WHOLE})
"""
_ADD_SOURCES: Final = """
    on conflict (project, source, entity) do update set
        stored = s.stored + excluded.stored,
        highest = greatest(s.highest, excluded.highest),
        sequence_sum = s.sequence_sum + excluded.sequence_sum,
        closing = greatest(s.closing, excluded.closing),
        last_at = greatest(s.last_at, excluded.last_at),
        heartbeats = s.heartbeats + excluded.heartbeats,
        first_heartbeat = least(s.first_heartbeat, excluded.first_heartbeat),
        last_heartbeat = greatest(s.last_heartbeat, excluded.last_heartbeat)
"""
TOTALS: Final = f"""
    project, {EVENT_SOURCE}, entity, count(*), max(sequence), sum(sequence),
    coalesce(max(sequence) filter (where type in ({_CLOSING}) or {_CLOSING_ALONE}), 0), max(time),
    count(*) filter (where type = '{AgentHeartbeat.type}'),
    min(time) filter (where type = '{AgentHeartbeat.type}'),
    max(time) filter (where type = '{AgentHeartbeat.type}')
"""
"""The select list that adds up events for `sources`, to be grouped by its first three columns."""

STORE: Final = f"""
with batch as (
    select * from unnest({_PARAMETERS}) as r ({_NAMES})
), stored as (
    insert into events ({_NAMES})
    select {_VALUES} from batch order by id
    on conflict (id) do nothing
    returning id, project, source, entity, sequence, type, time, case when type = '{AgentUsage.type}'
        then coalesce((envelope #>> '{{data,cost_micro_usd}}')::numeric, 0) else 0 end as cost
), rated as (
    insert into event_rates as r
    select project, date_trunc('minute', now()), pg_backend_pid() % 16, count(*),
        {_COUNTS}, least(sum(cost), {MAX_WHOLE})::bigint
    from stored group by project order by project
    {_ADD_RATES}
), counted as (
    insert into sources as s
    select {TOTALS}
    from stored group by 1, 2, 3 order by 1, 2, 3
    {_ADD_SOURCES}
)
select case when count(*) < cardinality($1::uuid[]) then coalesce(array_agg(id), '{{}}') end from stored
"""  # noqa: S608  # constant names, no values
"""Store the events that are not stored yet, and add them to `sources` and `event_rates`.

Returns the ids of the new events, or null if all events were new.
"""


def _count_new(first: int) -> str:
    """The statements that add the result of `batch_totals`, with parameters numbered from `first`."""
    rates = first + len(SOURCE_TYPES)
    return f"""
rated as (
    insert into event_rates as r
    select project, date_trunc('minute', now()), pg_backend_pid() % 16, events, turns, tool_calls, errors, cost
    from unnest({_arrays(RATE_TYPES, rates)}) as g (project, events, turns, tool_calls, errors, cost) order by project
    {_ADD_RATES}
)
insert into sources as s
select * from unnest({_arrays(SOURCE_TYPES, first)}) order by 1, 2, 3
{_ADD_SOURCES}
"""  # noqa: S608  # constant names, no values


COUNT_NEW: Final = f"with {_count_new(1)}"
"""Add a batch of new events to `sources` and `event_rates`."""

STORE_NEW: Final = f"""
with stored as (
    insert into events ({_NAMES})
    select {_VALUES} from unnest({_PARAMETERS}) as r ({_NAMES}) order by id
), {_count_new(len(COLUMNS) + 1)}
"""  # noqa: S608  # constant names, no values
"""Store new events, and add them to `sources` and `event_rates`. Fails and stores nothing if one is not new."""

CONFLICTING: Final = """
select g.place
from unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[]) with ordinality
    as g (id, project, source, sequence, type, place)
join events e using (id)
where (e.project, event_source(e.source, e.entity), e.sequence, e.type)
    is distinct from (g.project, g.source, g.sequence, g.type)
"""
"""The positions (from 1) of the events that differ from the event that is stored under their id."""

COUNT_DUPLICATES: Final = """
insert into refusals as r select project, duplicates from unnest($1::text[], $2::bigint[]) as g (project, duplicates)
order by project
on conflict (project) do update set duplicates = r.duplicates + excluded.duplicates
"""

_COLUMN_TYPES: Final = {
    "state_sequence": "integer",
    "sandbox_sequence": "integer",
    "started_sequence": "integer",
    "retried_sequence": "integer",
    "expires_sequence": "integer",
    "attempt": "integer",
    "max_attempts": "integer",
    "deadline": "timestamptz",
    "not_before": "timestamptz",
    "unsaid": "boolean",
    "warm": "boolean",
    "asked_in": "uuid",
}
"""The SQL types of columns. Columns that are not listed have texts, or times if their names end with `_at`."""
_JSON: Final = {"result": "json", "depends_on": "json", "labels": "jsonb"}
"""The types of the JSON columns. Their values are passed as text, because a parameter can't be an array of arrays."""


Changes = dict[str, str]
"""By column: the SQL expression that combines a batch's value (`excluded`) with the stored value (`t`)."""


def _upsert(table: str, row: type, key: str, changes: Changes) -> str:
    names = [column.name for column in fields(row)]
    parameters = ", ".join(f"${number}::{_sql_type(name)}[]" for number, name in enumerate(names, 1))
    selected = ", ".join(f"{name}::{_JSON[name]}" if name in _JSON else name for name in names)
    assignments = ", ".join(f"{name} = {expression}" for name, expression in changes.items())
    return (
        f"insert into {table} as t ({', '.join(names)}) "  # noqa: S608  # constant names, no values
        f"select {selected} from unnest({parameters}) as r ({', '.join(names)}) order by project, {key} "
        f"on conflict (project, {key}) do update set {assignments}"
    )


def _sql_type(name: str) -> str:
    return "timestamptz" if name.endswith("_at") else _COLUMN_TYPES.get(name, "text")


def _latest(sequence: str, *names: str) -> Changes:
    """Changes of columns that get the value of the event with the higher sequence number."""
    return {
        name: f"case when excluded.{sequence} > t.{sequence} then excluded.{name} else t.{name} end"
        for name in (*names, sequence)
    }


def _single_value(*names: str) -> Changes:
    """Changes of columns whose value is in one event only."""
    return {name: f"coalesce(excluded.{name}, t.{name})" for name in names}


def _aggregate(function: str, *names: str) -> Changes:
    return {name: f"{function}(excluded.{name}, t.{name})" for name in names}


def _latest_life(changes: Changes) -> Changes:
    """Applies `changes` within one `life`. The values of a later life replace all values of an earlier one."""
    selected = {
        name: f"case when excluded.life > t.life then excluded.{name} when excluded.life < t.life then t.{name} "
        f"else {merged} end"
        for name, merged in changes.items()
    }
    return selected | _aggregate("greatest", "life")


FOLD_TASKS: Final = _upsert(
    "tasks",
    TaskRow,
    "task",
    _latest_life(
        _latest("state_sequence", "state", "state_at", "attempt", "error", "error_type", "result", "not_before")
        | _latest("sandbox_sequence", "sandbox")
        | _latest("started_sequence", "started_at")
        | _single_value("text", "harness", "runtime", "priority", "deadline", "depends_on", "max_attempts", "profile")
        | _single_value("labels")
        | _aggregate("least", "submitted_at")
        | _aggregate("greatest", "retried_sequence")
    ),
)
FOLD_SANDBOXES: Final = _upsert(
    "sandboxes",
    SandboxRow,
    "sandbox",
    _latest("state_sequence", "state", "state_at", "runtime", "reason", "error", "unsaid")
    | _latest("expires_sequence", "expires_at")
    | _single_value("isolation", "profile", "warm")
    | _aggregate("least", "requested_at", "running_at")
    | _aggregate("greatest", "task", "attempt"),
)
FOLD_MESSAGES: Final = _upsert(
    "messages",
    MessageRow,
    "message",
    _latest("state_sequence", "state", "state_at", "reason", "message_type")
    | _single_value("sender_id", "correlation_id")
    | _aggregate("least", "queued_at"),
)
FOLD_APPROVALS: Final = _upsert(
    "approvals",
    ApprovalRow,
    "sandbox, approval",
    _latest("state_sequence", "state", "state_at")
    | _single_value("tool", "reason", "requested_at", "expires_at", "on_timeout", "asked_in")
    | _single_value("answer", "decided_by", "decision_reason", "outcome"),
)
