"""Every field of the logs, once: its name, unit and meaning. A line is one JSON object on standard error.

A field holds one kind of thing wherever it stands. Ids are welcome here: logs are what one looks up a sandbox in.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Field:
    """One row of the table."""

    name: str
    says: str
    unit: str = ""


ALWAYS: Final = (
    Field("event", "What happened, in a few words that never vary: to be searched for."),
    Field("level", "`debug`, `info`, `warning` or `error`."),
    Field("timestamp", "When, by this process's clock: ISO 8601, in UTC."),
    Field("part", "Which part of the process speaks."),
    Field("service", "Which service; `worker` and `supervisor` speak in the same way."),
)
"""In every line."""

FIELDS: Final = (
    Field("trace_id", "The trace that it is part of, 32 hexadecimal digits."),
    Field("span_id", "The span within that, 16 hexadecimal digits."),
    Field("exception", "A traceback."),
    Field("error", "What went wrong, as the program has it."),
    Field("errors", "The same, of several."),
    Field("cause", "The class of the error behind it, where no error's text may be said."),
    Field("places", "Where it went wrong: file, line and function, the outermost first."),
    Field("problem", "What is wrong, in words for people."),
    Field("reason", "Why something is not done, or is ended."),
    Field("why", "Why a sandbox is not given what it asked for, or does not come to run."),
    Field("code", "The code of a refusal, as in docs/errors.md."),
    Field("fault", "What kind of fault of a runtime it is."),
    Field("faults", "How many fields of a document are wrong."),
    Field("fields", "Which fields of a document are wrong."),
    Field("failed", "The part that has ended or failed."),
    Field("failures", "How often in a row it has failed."),
    Field("project", "The project."),
    Field("task", "The task."),
    Field("sandbox", "The sandbox."),
    Field("attempt", "Which try it is, of a task or of a connection, from 1."),
    Field("message", "The message to an agent."),
    Field("approval", "What a person is asked leave for."),
    Field("unit", "What a runtime knows a sandbox by."),
    Field("id", "The id of an event."),
    Field("type", "The type of an event."),
    Field("command", "The type of a command."),
    Field("request", "The type of a request."),
    Field("rule", "The rule that found something."),
    Field("excess", "What a sandbox had or sent too much of."),
    Field("dropped", "How many dead letters were counted and not stored."),
    Field("missing", "The file that is not there."),
    Field("age", "How long a condition has held.", "s"),
    Field("tool", "The tool of an agent."),
    Field("repeats", "How often an agent has done the same."),
    Field("step", "What was to be done to a sandbox next."),
    Field("end", "How a sandbox's process has ended."),
    Field("alive", "Whether it still runs."),
    Field("outcome", "What becomes of a message: `Done`, `Retry` or `Dead`."),
    Field("subject", "The broker's subject."),
    Field("queue", "The queue group of a subscription."),
    Field("stream", "The stream."),
    Field("message_id", "The broker's id of a message that is being answered."),
    Field("number", "A sequence number of a stream, or the number of a migration."),
    Field("position", "Up to where a stream was read, as a sequence number."),
    Field("first", "The first of a range: a sequence number, or a day."),
    Field("last", "The last of a range."),
    Field("events", "How many events it is about."),
    Field("depth", "How many events are in the spool."),
    Field("bytes", "How much.", "By"),
    Field("before", "How full a stream was: 1 is full."),
    Field("after", "How full it is now."),
    Field("kept", "How many of a sandbox's artifacts are kept."),
    Field("bucket", "The bucket."),
    Field("key", "The key in a bucket."),
    Field("lease", "The lease."),
    Field("fence", "The fencing token of a holding of a lease."),
    Field("instance", "This run of the service: a new id with every start."),
    Field("http_port", "Where /metrics, /healthz and /readyz are."),
    Field("reconnects", "How often the broker's connection came back."),
    Field("signal", "What the collector does not take: `traces` or `metrics`."),
    Field("url", "An address, without what is secret in it."),
    Field("expires_at", "Until when a credential is good: ISO 8601."),
    Field("most", "The most that one may have."),
    Field("migration", "The file of a migration of the database."),
    Field("runtime", "The runtime."),
    Field("runtimes", "How many runtimes are there, of the remote runtime's account."),
    Field("sandboxes", "How many sandboxes it is about."),
    Field("isolation", "How a runtime isolates."),
    Field("memory", "What holds a sandbox's memory in its limit."),
    Field("processes", "What limits its number of processes."),
    Field("engine", "The version of the Docker Engine."),
    Field("cluster", "Where the Kubernetes API is."),
    Field("namespace", "The namespace that pods are made in."),
    Field("image", "The image that sandboxes are made of."),
    Field("source", "The snapshot or image that sandboxes are made of at Daytona."),
    Field("target", "The region at Daytona."),
    Field("process", "A process of the local stack."),
    Field("pid", "Its number."),
    Field("status", "Its exit status."),
    Field("restarts", "How often it was started again."),
    Field("phase", "How far the local stack has come: `starting`, `running`, `stopping` and so on."),
    Field("home", "The folder of the local stack."),
    Field("folder", "Where something was put aside."),
    Field("directory", "A folder whose rights were changed."),
    Field("because", "The user for whom that was done."),
    Field("see", "The log to look into."),
    Field("damage", "What was cut off of a torn spool."),
    Field("again_seconds", "After how long it is tried again.", "s"),
)
"""Beside these, where there is something to say."""

NAMES: Final = frozenset(field.name for field in (*ALWAYS, *FIELDS))
