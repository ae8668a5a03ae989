"""The table of all log fields: name, unit and meaning. A line is one JSON object on standard error.

A field has the same meaning in every line. Ids belong here: logs are searched by them.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Field:
    """One row of the table."""

    name: str
    meaning: str
    unit: str = ""


ALWAYS: Final = (
    Field("event", "What happened: a short constant string, to search for."),
    Field("level", "`debug`, `info`, `warning` or `error`."),
    Field("timestamp", "The time by this process's clock: ISO 8601, in UTC."),
    Field("part", "The part of the process that logs."),
    Field("service", "The service; `worker` and `supervisor` log in the same way."),
)
"""The fields of every line."""

FIELDS: Final = (
    Field("trace_id", "The trace that the line belongs to, 32 hexadecimal digits."),
    Field("span_id", "The span within the trace, 16 hexadecimal digits."),
    Field("exception", "A traceback."),
    Field("error", "The error, as the program reports it."),
    Field("cause", "The class of the exception that caused the error, where the text of an error must not be logged."),
    Field("places", "Where the error was raised: file, line and function, the outermost first."),
    Field("problem", "What is wrong, as text for users."),
    Field("reason", "Why something is not done, or is ended."),
    Field("why", "Why a sandbox's request is refused, or why it does not start."),
    Field("code", "The code of a refusal, as in docs/errors.md."),
    Field("fault", "The kind of a runtime's fault."),
    Field("faults", "How many fields of a document are wrong."),
    Field("fields", "The names of the wrong fields of a document."),
    Field("failed", "The part that has ended or failed."),
    Field("failures", "The number of consecutive failures."),
    Field("host", "The scheme, host and port of a forge."),
    Field(
        "credential",
        "The setting or the GitHub App that a forge's credential comes from, or a user's credential's name; no value.",
    ),
    Field("user", "The user who requested it, if the request names one: a user id, or `token:` and a token's name."),
    Field("project", "The project."),
    Field("task", "The task."),
    Field("branch", "The key of the branch's record: its project and id."),
    Field("sandbox", "The sandbox."),
    Field("attempt", "The number of the attempt, of a task or of a connection, from 1."),
    Field("message", "The message to an agent."),
    Field("approval", "The approval."),
    Field("unit", "The runtime's own id of a sandbox."),
    Field("id", "The id of an event."),
    Field("type", "The type of an event."),
    Field("command", "The type of a command."),
    Field("request", "The type of a request."),
    Field("rule", "The rule that found something."),
    Field("connections", "The most connections that a user's credential had at one time."),
    Field("excess", "The limit that a sandbox exceeded."),
    Field("dropped", "How many dead letters were counted and not stored, or how many received messages were dropped."),
    Field("times", "The number of occurrences since the last line about the same source, at most a line per minute."),
    Field("ignored", "How many such messages the worker has ignored since it started."),
    Field("missing", "The missing file."),
    Field("age", "How long a condition has held.", "s"),
    Field("tool", "The tool of an agent."),
    Field("step", "The next step of a sandbox's lifecycle, or the step of an intervention."),
    Field("end", "How a sandbox's process ended."),
    Field("alive", "Whether an orphaned sandbox still runs."),
    Field(
        "outcome",
        "The outcome of a message (`Done`, `Retry` or `Dead`) or of a due time (`skipped`, `missed`, `refused`).",
    ),
    Field("subject", "The broker's subject."),
    Field("queue", "The queue group of a subscription."),
    Field("stream", "The stream."),
    Field("subscription", "The name of a durable subscription."),
    Field("webhook", "The project and the name of a webhook."),
    Field("message_id", "The broker's id of the message that is replied to."),
    Field("number", "A sequence number of a stream, or the number of a migration."),
    Field("position", "The sequence number up to which a stream was read."),
    Field("first", "The first of a range: a sequence number, or a day."),
    Field("last", "The last of a range."),
    Field("events", "The number of events."),
    Field("tasks", "The number of tasks."),
    Field("artifact", "The name of an artifact."),
    Field("contents", "The number of contents of artifacts."),
    Field("requests", "The number of requests."),
    Field("depth", "How many events are in the spool."),
    Field("bytes", "The size.", "By"),
    Field("before", "How full a stream was before it was purged: 1 is full."),
    Field("after", "How full the stream is after it was purged: 1 is full."),
    Field("kept", "The number of a sandbox's artifacts that remain in the stream."),
    Field("bucket", "The bucket."),
    Field("key", "The key in a bucket."),
    Field("scope", "The scope of a budget: `task`, `project` or `herd`."),
    Field("limit", "The reached limit of a budget: its window, its kind, and whether it is `warned` or `exceeded`."),
    Field("due_at", "The time at which a schedule was due: ISO 8601, in UTC."),
    Field("partitions", "The number of partitions of the monitor's sandboxes; 0 for a version without partitions."),
    Field("lease", "The lease."),
    Field("fence", "The fencing token of a lease."),
    Field("instance", "This run of the service: a new id with every start."),
    Field("http_port", "The port of /metrics, /healthz and /readyz."),
    Field("reconnects", "How often the broker was reconnected."),
    Field("signal", "What the collector does not accept: `traces` or `metrics`."),
    Field("url", "A URL, without its secret parts."),
    Field("expires_at", "When a credential expires: ISO 8601."),
    Field("most", "The limit."),
    Field("index", "The name of an index of the database."),
    Field("partition", "The name of a partition of the database."),
    Field("migration", "The file of a migration of the database."),
    Field("runtime", "The runtime."),
    Field("runtimes", "The number of runtimes in the remote runtime's account."),
    Field("sandboxes", "The number of sandboxes."),
    Field("isolation", "How a runtime isolates sandboxes."),
    Field("memory", "The mechanism that enforces a sandbox's memory limit."),
    Field("processes", "The mechanism that enforces a sandbox's limit of processes."),
    Field("engine", "The version of the Docker Engine."),
    Field("cluster", "The address of the Kubernetes API."),
    Field("namespace", "The namespace of the pods."),
    Field("image", "The image of the sandboxes."),
    Field("source", "The snapshot or image of the sandboxes at Daytona."),
    Field("target", "The region at Daytona."),
    Field("process", "A process of the local stack."),
    Field("pid", "The process id of a process of the local stack."),
    Field("status", "The exit status of a process of the local stack."),
    Field("restarts", "How often a process of the local stack was restarted."),
    Field("phase", "The phase of the local stack: `starting`, `running`, `stopping` and so on."),
    Field("home", "The folder of the local stack."),
    Field("folder", "The folder that something was moved to."),
    Field("directory", "A directory whose permissions were changed, or a mirror that was removed or not repacked."),
    Field("because", "The system user, or its uid, that the change was made for."),
    Field("see", "The log with details."),
    Field("damage", "The part that was removed from a damaged spool."),
)
"""The fields of lines to which they apply."""

NAMES: Final = frozenset(field.name for field in (*ALWAYS, *FIELDS))
