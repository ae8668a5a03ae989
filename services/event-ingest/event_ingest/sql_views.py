"""The views for SQL and their columns, which `docs/sql.md` describes. Their statements are in the migrations. Pure.

Within a version, no column is added, removed or renamed, and no type is changed. A changed view gets another schema.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SCHEMA: Final = "sandherd_v1"
"""The schema of the views; its name has their version."""


@dataclass(frozen=True)
class Column:
    """A column of a view: its name, its type as Postgres names it, and its meaning."""

    name: str
    sql_type: str
    meaning: str


@dataclass(frozen=True)
class View:
    """A view: its name, the meaning of a row, and its columns in order."""

    name: str
    row: str
    columns: Sequence[Column]


def _text(name: str, meaning: str) -> Column:
    return Column(name, "text", meaning)


def _count(name: str, meaning: str) -> Column:
    return Column(name, "bigint", meaning)


def _time(name: str, meaning: str) -> Column:
    return Column(name, "timestamp with time zone", meaning)


_ID: Final = Column(
    "id", "uuid", "The id of the event, a UUIDv7: ids are ordered by time, by the clock of the publisher."
)
_PROJECT: Final = _text("project", "The project.")
_SANDBOX: Final = _text("sandbox_id", "The sandbox.")
_CREATED_AT: Final = _time("created_at", "When the event was published, by the clock of its publisher.")
_STATE_AT: Final = _time("state_at", "When it entered its state.")
_TURN: Final = _count("turn", "The turn of the agent.")

VIEWS: Final = (
    View(
        "sandbox_events",
        "An event about a sandbox.",
        (
            _ID,
            _PROJECT,
            _SANDBOX,
            _text("event_type", "The type of the event: see `events.md`."),
            Column("event_data", "json", "The event's `data`."),
            _text("source", "The publisher of the event."),
            Column("sequence", "integer", "The number of the event among those of its source, from 1."),
            _count("stream_sequence", "The number of the event in the stream: the order of publication."),
            Column("size", "integer", "The size of the whole event in bytes."),
            _CREATED_AT,
            _time("stored_at", "When it was stored, by the clock of the database."),
        ),
    ),
    View(
        "tasks",
        "A task. If its name was used again, only the latest task has a row.",
        (
            _PROJECT,
            _text("task_id", "The task."),
            _text("state", "The state: see `states.md`."),
            _STATE_AT,
            Column("attempt", "integer", "The number of the attempt, from 1."),
            Column("max_attempts", "integer", "The maximum number of attempts."),
            _text("priority", "Its priority."),
            _text("sandbox_id", "The sandbox of the last attempt."),
            _text("text", "The text of the task."),
            _text("harness", "The kind of the agent."),
            _text("runtime", "The runtime of its sandboxes."),
            _text("profile", "The profile of its sandboxes."),
            Column("labels", "jsonb", "Its labels, by name."),
            Column("depends_on", "json", "The tasks that it depends on, as a list."),
            _time("submitted_at", "When it was submitted."),
            _time("started_at", "When the agent of the last attempt started."),
            _time("deadline", "When it has to be done at the latest."),
            _time("ended_at", "When it ended; null: it has not ended."),
            Column("result", "json", "Its result."),
            _text("error", "Why it failed or was cancelled, or why the last attempt failed."),
            _text("error_type", "The type of the error."),
        ),
    ),
    View(
        "sandboxes",
        "A sandbox.",
        (
            _PROJECT,
            _SANDBOX,
            _text("task_id", "The task that it was created for."),
            Column("attempt", "integer", "The attempt of the task, from 1."),
            _text("state", "The state: see `states.md`."),
            _STATE_AT,
            _text("runtime", "The runtime in which it runs."),
            _text("isolation", "How it is isolated."),
            _text("profile", "Its profile."),
            Column("warm", "boolean", "Whether it was started in advance."),
            _time("requested_at", "When it was requested."),
            _time("running_at", "When it first was in the state `running`."),
            _time("expires_at", "When its lifetime ends."),
            _time("ended_at", "When it ended; null: it has not ended."),
            _text("reason", "Why it is in its state."),
            _text("error", "Why it failed."),
        ),
    ),
    View(
        "messages",
        "A message to an agent.",
        (
            _PROJECT,
            _text("message_id", "The message."),
            _SANDBOX,
            _text("message_type", "Its type."),
            _text("state", "The state: see `states.md`."),
            _STATE_AT,
            _text("sender_id", "The sender, as stated in the message."),
            _text("correlation_id", "What it belongs to, such as an intervention."),
            _time("queued_at", "When it was queued."),
            _text("reason", "Why it was rejected or expired."),
        ),
    ),
    View(
        "interventions",
        "A decision of the monitor to intervene, with its outcome.",
        (
            _ID,
            _PROJECT,
            _SANDBOX,
            _text("rule", "The rule that decided it."),
            _text("step", "`nudge`, `interrupt`, `pause` or `terminate`."),
            _count("intervention_number", "Its number in the sandbox, from 1."),
            _text("message", "Its text."),
            _text("message_id", "The message to the agent."),
            _text("correlation_id", "The id that its message and its outcome have in common."),
            _text("approval_id", "The approval that a pause requests."),
            _CREATED_AT,
            _text("outcome", "`obeyed`, `ignored`, `undelivered` or `finished`; null: there is none yet."),
            Column("recovered", "boolean", "Whether the pattern that the rule found has ended since."),
            _time("outcome_at", "When the outcome was published."),
        ),
    ),
    View(
        "files",
        "A change of a file by an agent.",
        (
            _ID,
            _PROJECT,
            _SANDBOX,
            _text("file_path", "The path of the file, relative to the work tree."),
            _text("change_type", "`created`, `modified`, `deleted` or `renamed`."),
            _text("previous_path", "The path before it was renamed."),
            Column("is_binary", "boolean", "Whether the content is binary."),
            _count("lines_added", "Lines added."),
            _count("lines_removed", "Lines removed."),
            _text("content_sha256", "The SHA-256 of the content after the change, if it was published."),
            _text("diff", "The diff, or its beginning."),
            _TURN,
            _text("tool_use_id", "The call that changed it."),
            _CREATED_AT,
        ),
    ),
    View(
        "usage",
        "Tokens and cost that an agent reported.",
        (
            _ID,
            _PROJECT,
            _SANDBOX,
            _text("model", "The model, as the agent named it."),
            _TURN,
            _count("input_tokens", "Input tokens."),
            _count("output_tokens", "Output tokens."),
            _count("cache_read_tokens", "Tokens read from the cache."),
            _count("cache_write_tokens", "Tokens written to the cache."),
            _count("cost_micro_usd", "The cost in micro-dollars."),
            _CREATED_AT,
        ),
    ),
    View(
        "event_summaries",
        "Events of one type, source and day that were removed from the history, because they have a shorter retention.",
        (
            _PROJECT,
            _SANDBOX,
            Column("day", "date", "The day in the ids of the events."),
            _text("event_type", "The type of the event: see `events.md`."),
            _text("source", "The publisher of the events."),
            _count("event_count", "How many there were."),
            _time("first_created_at", "When the first was published."),
            _time("last_created_at", "When the last was published."),
            Column("largest_gap", "interval", "The longest time between two of them."),
        ),
    ),
)
"""All views of the version."""
