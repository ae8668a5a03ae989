"""The table of all subjects: who publishes and who receives on each, and which stream stores it.

The documentation's tables, the AsyncAPI document, the broker's permissions and the tests are generated from `TABLE`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import UnsafeNameError, safe_name
from sandherd.contracts.principals import MessageKind, Principal, Subject

__all__ = ["BY_NAME", "PREFIX", "TABLE", "MessageKind", "Principal", "Subject"]

PREFIX: Final = "sandherd.v1"

_P = Principal
_USERS: Final = frozenset({_P.CLIENT, _P.OPERATOR})
_STATEFUL: Final = frozenset({_P.SPAWNER, _P.EVENT_INGEST, _P.MONITOR, _P.MESSAGE_RELAY})
"""Services that handle messages of streams, and therefore have dead letters."""
_SERVICES: Final = _STATEFUL | {_P.GATEWAY}
_CALLERS: Final = _USERS | {_P.GATEWAY}
"""Principals that may use what the HTTP API offers: users, and the gateway."""
_MONITOR: Final = frozenset({_P.MONITOR})
_GATEWAY: Final = frozenset({_P.GATEWAY})
_READERS: Final = _USERS | {_P.SUBSCRIBER}
_REQUEUERS: Final = frozenset({_P.EVENT_INGEST, _P.MESSAGE_RELAY, _P.MONITOR})
"""Services that requeue dead letters, in addition to the spawner."""
_REQUEUE_CALLERS: Final = frozenset({_P.OPERATOR, _P.GATEWAY})
"""Principals that may have a dead letter requeued. The gateway's permission excludes `fleet`
(`bus/auth/permissions.py`)."""
_SUBSCRIBERS: Final = _SERVICES | _READERS


def _event(domain: str, producer: Principal, description: str) -> Subject:
    return Subject(
        name=f"event.{domain}",
        kind=MessageKind.EVENT,
        template=f"{PREFIX}.event.{{project}}.{{{'sandbox' if domain == 'agent' else 'entity'}}}.{domain}.{{action}}",
        description=description,
        producers=frozenset({producer}),
        consumers=_SUBSCRIBERS,
        stream="EVENTS",
    )


def _command(service: Principal, verb: str, producers: frozenset[Principal], description: str) -> Subject:
    return Subject(
        name=f"command.{service}.{verb}",
        kind=MessageKind.COMMAND,
        template=f"{PREFIX}.command.{service}.{verb}.{{project}}",
        description=description,
        producers=producers,
        consumers=frozenset({service}),
        stream="COMMANDS",
    )


def _request(service: Principal, verb: str, producers: frozenset[Principal], description: str) -> Subject:
    return Subject(
        name=f"request.{service}.{verb}",
        kind=MessageKind.REQUEST,
        template=f"{PREFIX}.request.{service}.{verb}.{{project}}",
        description=description,
        producers=producers,
        consumers=frozenset({service}),
    )


def _worker_request(verb: str, description: str) -> Subject:
    return Subject(
        name=f"request.worker.{verb}",
        kind=MessageKind.REQUEST,
        template=f"{PREFIX}.request.worker.{verb}.{{project}}.{{sandbox}}",
        description=description,
        producers=frozenset({_P.SPAWNER}),
        consumers=frozenset({_P.WORKER}),
    )


TABLE: Final[tuple[Subject, ...]] = (
    _event("agent", _P.WORKER, "Events of the agent in a sandbox."),
    _event("task", _P.SPAWNER, "Events of a task."),
    _event("sandbox", _P.SPAWNER, "Events of a sandbox."),
    _event("branch", _P.SPAWNER, "Events of a task's branch."),
    _event("credential", _P.SPAWNER, "Events of a user's credential."),
    _event("message", _P.MESSAGE_RELAY, "Events of a message to an agent."),
    _event("approval", _P.MESSAGE_RELAY, "Events of an approval."),
    _event("monitor", _P.MONITOR, "Findings and decisions of the monitor, and their outcomes."),
    _event("subscription", _P.EVENT_INGEST, "Events of a durable subscription."),
    _event("webhook", _P.MESSAGE_RELAY, "Events of a webhook."),
    _command(_P.SPAWNER, "submit_task", _CALLERS, "Submit a task."),
    _command(_P.SPAWNER, "cancel_task", _CALLERS | {_P.MONITOR}, "Cancel a task."),
    _command(_P.SPAWNER, "retry_task", _CALLERS, "Retry a task."),
    _command(_P.SPAWNER, "create_sandbox", _CALLERS, "Create a sandbox without a task."),
    _command(_P.SPAWNER, "terminate_sandbox", _CALLERS | {_P.MONITOR}, "End a sandbox."),
    _command(_P.SPAWNER, "pause_sandbox", _CALLERS | {_P.MONITOR}, "Pause a sandbox."),
    _command(_P.SPAWNER, "resume_sandbox", _CALLERS | {_P.MONITOR}, "Resume a sandbox."),
    _command(_P.SPAWNER, "extend_sandbox", _CALLERS, "Extend a sandbox's time to live."),
    _command(_P.MESSAGE_RELAY, "send_message", _CALLERS | {_P.MONITOR}, "Send a message to an agent."),
    _command(_P.MESSAGE_RELAY, "answer_approval", _CALLERS | {_P.MONITOR}, "Grant or deny an approval."),
    _command(_P.MESSAGE_RELAY, "request_approval", _MONITOR, "Request an approval for a service."),
    _command(_P.MESSAGE_RELAY, "withdraw_approval", _MONITOR, "Withdraw a service's approval."),
    _command(_P.MONITOR, "mute_rule", _CALLERS, "Mute a guardian rule for one sandbox."),
    _command(_P.MONITOR, "unmute_rule", _CALLERS, "Evaluate a muted rule again."),
    _request(_P.SPAWNER, "tasks", _CALLERS, "List current tasks."),
    _request(_P.SPAWNER, "submitted_task", _GATEWAY, "Return the submitted specification of a task."),
    _request(_P.SPAWNER, "sandboxes", _CALLERS, "List current sandboxes."),
    _request(_P.SPAWNER, "list_runtimes", _CALLERS, "List runtimes, profiles, harnesses and limits."),
    _request(_P.SPAWNER, "prune", frozenset({_P.OPERATOR}), "Compare the records with the runtimes' sandboxes."),
    _request(_P.SPAWNER, "exec", _CALLERS, "Run a command in a sandbox."),
    _request(_P.SPAWNER, "exec_status", _CALLERS, "Return the state and output of a command."),
    _request(_P.SPAWNER, "exec_kill", _CALLERS, "Send a signal to a command."),
    _request(_P.SPAWNER, "exec_input", _CALLERS, "Write to the terminal of a command, or change its size."),
    _request(_P.SPAWNER, "port_write", _USERS, "Open a connection to a port of a sandbox, or write to it."),
    _request(_P.SPAWNER, "port_read", _USERS, "Return the next bytes of a connection to a port of a sandbox."),
    _request(_P.SPAWNER, "list_files", _CALLERS, "List a folder of a sandbox."),
    _request(_P.SPAWNER, "upload_chunk", _CALLERS, "Store a chunk of a large file for an upload."),
    _request(_P.SPAWNER, "upload", _CALLERS, "Upload a file or folder to a sandbox."),
    _request(_P.SPAWNER, "download", _CALLERS, "Download a file or folder from a sandbox."),
    _request(
        _P.SPAWNER, "download_chunk", _READERS | {_P.GATEWAY}, "Return the next chunk of a download or an artifact."
    ),
    _request(_P.SPAWNER, "branches", _CALLERS, "List branches that tasks work on."),
    _request(_P.SPAWNER, "push_branch", _CALLERS, "Push a branch to its repository."),
    _request(_P.SPAWNER, "open_pull_request", _CALLERS, "Open or update the pull request of a branch."),
    _request(_P.SPAWNER, "merge_branch", _CALLERS, "Merge the pull request of a branch."),
    _request(
        _P.SPAWNER,
        "check_pull_requests",
        frozenset({_P.GATEWAY}),
        "Poll a forge for pull requests that it has reported as changed.",
    ),
    _request(_P.SPAWNER, "delete_branch", _CALLERS, "Delete a branch."),
    _request(_P.SPAWNER, "set_secret", _CALLERS, "Store a named secret, for the project's tasks."),
    _request(_P.SPAWNER, "secrets", _CALLERS, "List named secrets."),
    _request(_P.SPAWNER, "delete_secret", _CALLERS, "Delete a named secret."),
    _request(_P.SPAWNER, "webhook_secrets", frozenset({_P.MESSAGE_RELAY}), "Return the secrets of a webhook."),
    _request(_P.SPAWNER, "delete_webhook_secrets", frozenset({_P.MESSAGE_RELAY}), "Erase the secrets of a webhook."),
    _request(_P.SPAWNER, "create_token", _USERS, "Create an access token of the HTTP API."),
    _request(_P.SPAWNER, "tokens", _USERS, "List access tokens of the HTTP API."),
    _request(_P.SPAWNER, "revoke_token", _USERS, "Revoke an access token of the HTTP API, or end a session."),
    _request(_P.SPAWNER, "create_code", _USERS, "Create a one-time code for a browser."),
    _request(_P.SPAWNER, "create_session", _GATEWAY, "Create a browser's session for a valid token or code."),
    _request(_P.SPAWNER, "sign_in", _GATEWAY, "Create a browser's session for a user of the OpenID provider."),
    _request(_P.SPAWNER, "end_session", _GATEWAY, "End a browser's session."),
    _request(_P.SPAWNER, "projects", _CALLERS, "List projects, with their limits and defaults."),
    _request(_P.SPAWNER, "set_project", frozenset({_P.OPERATOR}), "Create or change a project."),
    _request(_P.SPAWNER, "set_schedule", _CALLERS, "Create or replace a schedule of tasks."),
    _request(_P.SPAWNER, "schedules", _CALLERS, "List schedules, with their next times and last runs."),
    _request(_P.SPAWNER, "pause_schedule", _CALLERS, "Pause or resume a schedule."),
    _request(_P.SPAWNER, "trigger_schedule", _CALLERS, "Start a task of a schedule now."),
    _request(_P.SPAWNER, "delete_schedule", _CALLERS, "Delete a schedule."),
    _request(_P.SPAWNER, "agent_server", _USERS, "Return the address and state of a sandbox's agent server."),
    _request(_P.SPAWNER, "runtime_logs", _CALLERS, "Return the log of a sandbox that its runtime stores."),
    _request(_P.MESSAGE_RELAY, "create_webhook", _CALLERS, "Create a webhook and its secret."),
    _request(_P.MESSAGE_RELAY, "webhooks", _CALLERS, "List webhooks, with the progress of each."),
    _request(_P.MESSAGE_RELAY, "rotate_webhook_secret", _CALLERS, "Create another secret for a webhook."),
    _request(_P.MESSAGE_RELAY, "replay_webhook", _CALLERS, "Deliver events to a webhook again, or resume it."),
    _request(_P.MESSAGE_RELAY, "test_webhook", _CALLERS, "Send a test to a webhook."),
    _request(_P.MESSAGE_RELAY, "delete_webhook", _CALLERS, "Delete a webhook."),
    _request(_P.MONITOR, "budgets", _CALLERS, "List budgets, and what was used of them."),
    _request(_P.MONITOR, "grant_budget", _CALLERS, "Grant a task more than its budget."),
    _request(_P.MONITOR, "set_budget", frozenset({_P.OPERATOR}), "Set the budget of a project, or of the herd."),
    _request(_P.MONITOR, "show", _CALLERS, "Return what the monitor knows of a sandbox."),
    _request(_P.EVENT_INGEST, "events", _READERS | {_P.GATEWAY, _P.MONITOR}, "List stored events."),
    _request(_P.EVENT_INGEST, "trajectory", _CALLERS, "List the events of an agent."),
    _request(_P.EVENT_INGEST, "tasks", _CALLERS, "List tasks in the history."),
    _request(_P.EVENT_INGEST, "sandboxes", _CALLERS, "List sandboxes in the history."),
    _request(_P.EVENT_INGEST, "approvals", _CALLERS, "List pending and earlier approvals."),
    _request(_P.EVENT_INGEST, "usage", _CALLERS, "Add up tokens and cost."),
    _request(_P.EVENT_INGEST, "statistics", _CALLERS, "Count turns, tool calls and errors, and add up cost."),
    _request(_P.EVENT_INGEST, "overview", _CALLERS, "Show the state and the rates of a project."),
    _request(_P.EVENT_INGEST, "transcript", _CALLERS, "List the messages, calls and results of an agent."),
    _request(_P.EVENT_INGEST, "comparison", _CALLERS, "Compare what the agents in two sandboxes did."),
    _request(_P.EVENT_INGEST, "search", _CALLERS, "Search the texts of events."),
    _request(_P.EVENT_INGEST, "file_versions", _CALLERS, "List the versions of files that an agent has changed."),
    _request(_P.EVENT_INGEST, "audit", _CALLERS, "Check whether events are missing."),
    _request(_P.EVENT_INGEST, "verification", _CALLERS, "Compare the history's tables with its events."),
    _request(_P.EVENT_INGEST, "output", _CALLERS, "Return the terminal output of a sandbox."),
    _request(_P.EVENT_INGEST, "subscriptions", _READERS | {_P.GATEWAY}, "List subscriptions."),
    _request(_P.EVENT_INGEST, "subscribe", _READERS | {_P.GATEWAY}, "Create a durable subscription to events."),
    _request(_P.EVENT_INGEST, "unsubscribe", _READERS | {_P.GATEWAY}, "Delete a subscription."),
    _request(_P.EVENT_INGEST, "dead", _CALLERS, "List dead letters."),
    _request(_P.EVENT_INGEST, "history", frozenset({_P.OPERATOR}), "Show when days of the history are dropped."),
    _request(_P.EVENT_INGEST, "hold", frozenset({_P.OPERATOR}), "Prevent the drop of a project's or a task's events."),
    _request(_P.EVENT_INGEST, "release", frozenset({_P.OPERATOR}), "Remove a hold."),
    _request(_P.EVENT_INGEST, "archives", frozenset({_P.OPERATOR}), "List the archived days of the history."),
    _request(_P.EVENT_INGEST, "restore", frozenset({_P.OPERATOR}), "Load a day of the history from its archive."),
    _request(
        _P.EVENT_INGEST, "stored_artifact", frozenset({_P.SPAWNER}), "Return a chunk of an artifact from its store."
    ),
    _request(_P.MONITOR, "report", _CALLERS, "Report how the sandboxes of a project hinder each other."),
    _request(_P.SPAWNER, "requeue", _REQUEUE_CALLERS, "Handle a dead letter of this service again."),
    _request(_P.EVENT_INGEST, "requeue", _REQUEUE_CALLERS, "Handle a dead letter of this service again."),
    _request(_P.MESSAGE_RELAY, "requeue", _REQUEUE_CALLERS, "Handle a dead letter of this service again."),
    _request(_P.MONITOR, "requeue", _REQUEUE_CALLERS, "Handle a dead letter of this service again."),
    _request(_P.SPAWNER, "create_consumer", frozenset({_P.EVENT_INGEST}), "Create the consumer of a subscription."),
    _request(_P.SPAWNER, "delete_consumer", frozenset({_P.EVENT_INGEST}), "Delete the consumer of a subscription."),
    _request(
        _P.SPAWNER,
        "purge_events",
        frozenset({_P.EVENT_INGEST}),
        "Remove events that all durable consumers have acknowledged.",
    ),
    _request(_P.SPAWNER, "purge_artifacts", frozenset({_P.EVENT_INGEST}), "Remove the oldest artifacts of a sandbox."),
    _request(_P.SPAWNER, "delete_dead", _REQUEUERS, "Delete a dead letter that was handled."),
    # No service requests its own health: the broker would find a cycle of imports, and ignore the import for a backup.
    *(
        _request(service, "examine", _CALLERS - {service}, "Return the service's health.")
        for service in sorted(_SERVICES)
    ),
    Subject(
        name="request.spawner.credential",
        kind=MessageKind.REQUEST,
        template=f"{PREFIX}.request.spawner.credential.{{project}}.{{sandbox}}",
        description="Return a credential for the sandbox's worker.",
        producers=frozenset({_P.JOINER}),
        consumers=frozenset({_P.SPAWNER}),
    ),
    Subject(
        name="request.spawner.fetch",
        kind=MessageKind.REQUEST,
        template=f"{PREFIX}.request.spawner.fetch.{{project}}.{{sandbox}}",
        description="Return a chunk of an artifact that the sandbox was given.",
        producers=frozenset({_P.WORKER}),
        consumers=frozenset({_P.SPAWNER}),
    ),
    Subject(
        name="request.spawner.peers",
        kind=MessageKind.REQUEST,
        template=f"{PREFIX}.request.spawner.peers.{{project}}.{{sandbox}}",
        description="List the other agents of the sandbox's project.",
        producers=frozenset({_P.WORKER}),
        consumers=frozenset({_P.SPAWNER}),
    ),
    _worker_request("exec", "Run a command."),
    _worker_request("exec_status", "Return the state and output of a command."),
    _worker_request("exec_kill", "Send a signal to a command."),
    _worker_request("exec_input", "Write to the terminal of a command, or change its size."),
    _worker_request("port_write", "Open a connection to a port of the sandbox, or write to it."),
    _worker_request("port_read", "Return the next bytes of a connection to a port of the sandbox."),
    _worker_request("list_files", "List a folder."),
    _worker_request("upload", "Write a file or folder to the work tree."),
    _worker_request("download", "Read a file or folder of the work tree."),
    Subject(
        name="inbox",
        kind=MessageKind.INBOX,
        template=f"{PREFIX}.inbox.{{project}}.{{sandbox}}",
        description="A message that waits for one sandbox.",
        producers=frozenset({_P.MESSAGE_RELAY}),
        consumers=frozenset({_P.MESSAGE_RELAY}),
        stream="INBOX",
    ),
    Subject(
        name="deliver",
        kind=MessageKind.DELIVERY,
        template=f"{PREFIX}.deliver.{{project}}.{{sandbox}}",
        description=(
            "A message to the worker; its reply is the receipt. An empty one checks that the worker is connected."
        ),
        producers=frozenset({_P.MESSAGE_RELAY}),
        consumers=frozenset({_P.WORKER}),
    ),
    Subject(
        name="artifact",
        kind=MessageKind.ARTIFACT,
        template=f"{PREFIX}.artifact.{{project}}.{{sandbox}}.{{artifact}}",
        description="A large payload, in chunks.",
        producers=frozenset({_P.WORKER, _P.SPAWNER}),
        consumers=frozenset({_P.EVENT_INGEST, _P.SPAWNER}),
        stream="ARTIFACTS",
    ),
    Subject(
        name="output",
        kind=MessageKind.OUTPUT,
        template=f"{PREFIX}.output.{{project}}.{{sandbox}}",
        description="Terminal output of one sandbox, as bytes.",
        producers=frozenset({_P.WORKER}),
        consumers=frozenset({_P.EVENT_INGEST}) | _USERS,
        stream="OUTPUT",
    ),
    Subject(
        name="dead",
        kind=MessageKind.DEAD,
        template=f"{PREFIX}.dead.{{service}}.{{reason}}",
        description="A message that could not be handled, with the reason.",
        producers=_STATEFUL,
        consumers=_STATEFUL,
        stream="DEAD",
    ),
)

BY_NAME: Final[Mapping[str, Subject]] = {row.name: row for row in TABLE}

INBOX: Final = BY_NAME["inbox"]
DELIVER: Final = BY_NAME["deliver"]
ARTIFACT: Final = BY_NAME["artifact"]
OUTPUT: Final = BY_NAME["output"]
CREDENTIAL: Final = BY_NAME["request.spawner.credential"]

EVENT_TOKENS: Final = 7
"""The number of tokens in the subject of an event."""


def event_subject(project: str, entity: str, event_type: str) -> str:
    """The subject of an event of this type about this entity. Raises `UnsafeNameError`."""
    return f"{PREFIX}.event.{safe_name(project, 'project')}.{safe_name(entity, 'entity')}.{event_type}"


@lru_cache(maxsize=8192)  # a herd publishes often, on few subjects; errors are not cached
def read_event_subject(subject: str) -> tuple[str, str, str]:
    """`(project, entity, type)` of an event's subject. Raises `ContractError` (`wrong_subject`)."""
    parts = subject.split(".")
    if len(parts) != EVENT_TOKENS or parts[:3] != [*PREFIX.split("."), "event"]:
        raise ContractError(Code.WRONG_SUBJECT, f"{subject[:120]!r} is not the subject of an event")
    try:
        return safe_name(parts[3], "project"), safe_name(parts[4], "entity"), f"{parts[5]}.{parts[6]}"
    except UnsafeNameError as error:
        raise ContractError(Code.UNSAFE_NAME, str(error), field=error.field) from None


def covers(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` matches `subject`, by the wildcard rules of NATS."""
    pattern_tokens, subject_tokens = pattern.split("."), subject.split(".")
    if pattern_tokens[-1] == ">":
        pattern_tokens = pattern_tokens[:-1]
        subject_tokens = subject_tokens[: len(pattern_tokens)] if len(subject_tokens) > len(pattern_tokens) else []
    if len(pattern_tokens) != len(subject_tokens):
        return False
    return all(expected in {"*", token} for expected, token in zip(pattern_tokens, subject_tokens, strict=True))


def command_subject(command_type: str, project: str) -> str:
    """The subject of a command of this type for this project."""
    return BY_NAME[f"command.{command_type}"].fill(project=project)


def request_subject(request_type: str, project: str) -> str:
    """The subject of a request of this type about this project; `fleet` stands for all projects."""
    return BY_NAME[f"request.{request_type}"].fill(project=project)


def sandbox_request_subject(request_type: str, project: str, sandbox: str) -> str:
    """The subject of a request whose subject names a sandbox: to its worker, or from it."""
    return BY_NAME[f"request.{request_type}"].fill(project=project, sandbox=sandbox)


def command_of(subject: str) -> tuple[str, str] | None:
    """`(type, project)` of a command's subject; None for any other subject. The project is not checked."""
    for row in TABLE:
        names = row.match(subject) if row.kind is MessageKind.COMMAND else None
        if names is not None:
            return row.name.removeprefix("command."), names["project"]
    return None


def project_of(subject: str) -> str | None:
    """The project in a subject of the table; None for any other subject, and for one without a project."""
    found = (row.match(subject) for row in TABLE)
    return next((names["project"] for names in found if names and "project" in names), None)


def dead_subject(service: str, code: Code) -> str:
    """The subject of a service's dead letters."""
    return BY_NAME["dead"].fill(service=service, reason=code.replace("_", "-"))
