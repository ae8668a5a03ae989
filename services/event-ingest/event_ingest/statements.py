"""The statements that store a batch. Each takes one list for each column and sorts, so that replicas can't deadlock."""

from dataclasses import fields
from typing import Final

from event_ingest.approvals import ApprovalRow
from event_ingest.folding import CLOSING
from event_ingest.rows import COLUMNS
from event_ingest.standing import MessageRow, SandboxRow, TaskRow

_NAMES: Final = ", ".join(name for name, _ in COLUMNS)
_GIVEN: Final = ", ".join(f"${place}::{kind}[]" for place, (_, kind) in enumerate(COLUMNS, 1))
_CLOSING: Final = ", ".join(f"'{name}'" for name in CLOSING)
_REFUSED_ALONE: Final = "type = 'sandbox.refused' and sequence = 1"
"""A refusal is the only word of a command's own source; in a sandbox's it is one of many."""

STORE: Final = f"""
with given as (
    select * from unnest({_GIVEN}) as r ({_NAMES})
), stored as (
    insert into events ({_NAMES}, size)
    select {_NAMES.replace("envelope", "envelope::json")}, octet_length(envelope) from given order by id
    on conflict (id) do nothing
    returning id, project, source, entity, sequence, type, time
), heard as (
    insert into sources as s
    select project, source, entity, count(*), max(sequence), sum(sequence),
        coalesce(max(sequence) filter (where type in ({_CLOSING}) or {_REFUSED_ALONE}), 0), max(time),
        count(*) filter (where type = 'agent.heartbeat'),
        min(time) filter (where type = 'agent.heartbeat'),
        max(time) filter (where type = 'agent.heartbeat')
    from stored group by project, source, entity order by project, source, entity
    on conflict (project, source, entity) do update set
        stored = s.stored + excluded.stored,
        highest = greatest(s.highest, excluded.highest),
        sequence_sum = s.sequence_sum + excluded.sequence_sum,
        closing = greatest(s.closing, excluded.closing),
        last_at = greatest(s.last_at, excluded.last_at),
        heartbeats = s.heartbeats + excluded.heartbeats,
        first_heartbeat = least(s.first_heartbeat, excluded.first_heartbeat),
        last_heartbeat = greatest(s.last_heartbeat, excluded.last_heartbeat)
)
select case when count(*) < cardinality($1::uuid[]) then coalesce(array_agg(id), '{{}}') end from stored
"""  # noqa: S608  # names of ours, no values
"""Store what is new, and count it where it came from. Returns the ids that were new, or null if all were."""

TWICE: Final = """
select g.place
from unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[]) with ordinality
    as g (id, project, source, sequence, type, place)
join events e using (id)
where (e.project, e.source, e.sequence, e.type) is distinct from (g.project, g.source, g.sequence, g.type)
"""
"""Which of these are not what is stored under their id."""

REFUSED: Final = """
insert into refusals as r select project, duplicates from unnest($1::text[], $2::bigint[]) as g (project, duplicates)
order by project
on conflict (project) do update set duplicates = r.duplicates + excluded.duplicates
"""

_TYPES: Final = {
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
_JSON: Final = frozenset({"result", "depends_on"})
"""Columns that are given as text: an array of arrays could not be."""


Changes = dict[str, str]
"""By column, what stands in it after the word of a batch (`excluded`) is folded into what stood there (`t`)."""


def _upsert(table: str, row: type, key: str, changes: Changes) -> str:
    names = [column.name for column in fields(row)]
    given = ", ".join(f"${place}::{_kind(name)}[]" for place, name in enumerate(names, 1))
    chosen = ", ".join(f"{name}::json" if name in _JSON else name for name in names)
    return (
        f"insert into {table} as t ({', '.join(names)}) "  # noqa: S608  # names of ours, no values
        f"select {chosen} from unnest({given}) as r ({', '.join(names)}) order by project, {key} "
        f"on conflict (project, {key}) do update set {', '.join(f'{name} = {to}' for name, to in changes.items())}"
    )


def _kind(name: str) -> str:
    return "timestamptz" if name.endswith("_at") else _TYPES.get(name, "text")


def _latest(sequence: str, *names: str) -> Changes:
    """The word of the event with the higher number."""
    return {
        name: f"case when excluded.{sequence} > t.{sequence} then excluded.{name} else t.{name} end"
        for name in (*names, sequence)
    }


def _said_once(*names: str) -> Changes:
    """The word of the only event that speaks of it."""
    return {name: f"coalesce(excluded.{name}, t.{name})" for name in names}


def _folded(function: str, *names: str) -> Changes:
    return {name: f"{function}(excluded.{name}, t.{name})" for name in names}


def _of_the_last_life(changes: Changes) -> Changes:
    """Within one life as in `changes`; what a later life says replaces all that an earlier one said."""
    chosen = {
        name: f"case when excluded.life > t.life then excluded.{name} when excluded.life < t.life then t.{name} "
        f"else {folded} end"
        for name, folded in changes.items()
    }
    return chosen | _folded("greatest", "life")


FOLD_TASKS: Final = _upsert(
    "tasks",
    TaskRow,
    "task",
    _of_the_last_life(
        _latest("state_sequence", "state", "state_at", "attempt", "error", "error_type", "result", "not_before")
        | _latest("sandbox_sequence", "sandbox")
        | _latest("started_sequence", "started_at")
        | _said_once("text", "harness", "runtime", "priority", "deadline", "depends_on", "max_attempts", "profile")
        | _folded("least", "submitted_at")
        | _folded("greatest", "retried_sequence")
    ),
)
FOLD_SANDBOXES: Final = _upsert(
    "sandboxes",
    SandboxRow,
    "sandbox",
    _latest("state_sequence", "state", "state_at", "runtime", "reason", "error", "unsaid")
    | _latest("expires_sequence", "expires_at")
    | _said_once("isolation", "profile", "warm")
    | _folded("least", "requested_at", "running_at")
    | _folded("greatest", "task", "attempt"),
)
FOLD_MESSAGES: Final = _upsert(
    "messages",
    MessageRow,
    "message",
    _latest("state_sequence", "state", "state_at", "reason", "message_type")
    | _said_once("sender_id", "correlation_id")
    | _folded("least", "queued_at"),
)
FOLD_APPROVALS: Final = _upsert(
    "approvals",
    ApprovalRow,
    "sandbox, approval",
    _latest("state_sequence", "state", "state_at")
    | _said_once("tool", "reason", "requested_at", "expires_at", "on_timeout", "asked_in")
    | _said_once("answer", "decided_by", "decision_reason", "outcome"),
)
