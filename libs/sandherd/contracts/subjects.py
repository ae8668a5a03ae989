"""Every subject, once: who may say what, who hears it, and which stream keeps it.

The README's table, the AsyncAPI document, the broker's permissions and the tests are made from `TABLE`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import UnsafeNameError, safe_name
from sandherd.contracts.principals import Mood, Principal, Subject

__all__ = ["BY_NAME", "PREFIX", "TABLE", "Mood", "Principal", "Subject"]

PREFIX: Final = "sandherd.v1"

_P = Principal
_PEOPLE: Final = frozenset({_P.CLIENT, _P.OPERATOR})
_SERVICES: Final = frozenset({_P.SPAWNER, _P.EVENT_INGEST, _P.MONITOR, _P.MESSAGE_RELAY})
_READERS: Final = _PEOPLE | {_P.SUBSCRIBER}
_REQUEUERS: Final = frozenset({_P.EVENT_INGEST, _P.MESSAGE_RELAY})
"""Services that requeue dead letters, beside the spawner."""
_LISTENERS: Final = _SERVICES | _READERS


def _event(domain: str, producer: Principal, says: str) -> Subject:
    return Subject(
        name=f"event.{domain}",
        mood=Mood.EVENT,
        template=f"{PREFIX}.event.{{project}}.{{{'sandbox' if domain == 'agent' else 'entity'}}}.{domain}.{{action}}",
        says=says,
        producers=frozenset({producer}),
        consumers=_LISTENERS,
        stream="EVENTS",
    )


def _command(service: Principal, verb: str, producers: frozenset[Principal], says: str) -> Subject:
    return Subject(
        name=f"command.{service}.{verb}",
        mood=Mood.COMMAND,
        template=f"{PREFIX}.command.{service}.{verb}.{{project}}",
        says=says,
        producers=producers,
        consumers=frozenset({service}),
        stream="COMMANDS",
    )


def _request(service: Principal, verb: str, producers: frozenset[Principal], says: str) -> Subject:
    return Subject(
        name=f"request.{service}.{verb}",
        mood=Mood.REQUEST,
        template=f"{PREFIX}.request.{service}.{verb}.{{project}}",
        says=says,
        producers=producers,
        consumers=frozenset({service}),
    )


def _worker_request(verb: str, says: str) -> Subject:
    return Subject(
        name=f"request.worker.{verb}",
        mood=Mood.REQUEST,
        template=f"{PREFIX}.request.worker.{verb}.{{project}}.{{sandbox}}",
        says=says,
        producers=frozenset({_P.SPAWNER}),
        consumers=frozenset({_P.WORKER}),
    )


TABLE: Final[tuple[Subject, ...]] = (
    _event("agent", _P.WORKER, "What an agent does, said by the worker of that one sandbox."),
    _event("task", _P.SPAWNER, "What becomes of a task."),
    _event("sandbox", _P.SPAWNER, "What becomes of a sandbox."),
    _event("branch", _P.SPAWNER, "What becomes of a task's branch."),
    _event("message", _P.MESSAGE_RELAY, "What becomes of a message to an agent."),
    _event("approval", _P.MESSAGE_RELAY, "What becomes of a request for a person's leave."),
    _event("monitor", _P.MONITOR, "What the monitor found, decided and saw come of it."),
    _command(_P.SPAWNER, "submit_task", _PEOPLE, "Do this task."),
    _command(_P.SPAWNER, "cancel_task", _PEOPLE | {_P.MONITOR}, "Stop this task."),
    _command(_P.SPAWNER, "retry_task", _PEOPLE, "Try this task once more."),
    _command(_P.SPAWNER, "create_sandbox", _PEOPLE, "Make a sandbox without a task."),
    _command(_P.SPAWNER, "terminate_sandbox", _PEOPLE | {_P.MONITOR}, "End this sandbox."),
    _command(_P.SPAWNER, "pause_sandbox", _PEOPLE | {_P.MONITOR}, "Freeze this sandbox."),
    _command(_P.SPAWNER, "resume_sandbox", _PEOPLE | {_P.MONITOR}, "Let this sandbox go on."),
    _command(_P.SPAWNER, "extend_sandbox", _PEOPLE, "Let this sandbox live longer."),
    _command(_P.MESSAGE_RELAY, "send_message", _PEOPLE | {_P.MONITOR}, "Say this to an agent."),
    _command(_P.MESSAGE_RELAY, "answer_approval", _PEOPLE | {_P.MONITOR}, "Give an agent leave, or deny it."),
    _request(_P.SPAWNER, "tasks", _PEOPLE, "Which tasks are there now?"),
    _request(_P.SPAWNER, "sandboxes", _PEOPLE, "Which sandboxes are there now?"),
    _request(_P.SPAWNER, "list_runtimes", _PEOPLE, "What can be asked for here?"),
    _request(_P.SPAWNER, "prune", frozenset({_P.OPERATOR}), "Compare the records with what is really there, now."),
    _request(_P.SPAWNER, "exec", _PEOPLE, "Run this command in a sandbox."),
    _request(_P.SPAWNER, "exec_status", _PEOPLE, "How far is that command, and what did it say?"),
    _request(_P.SPAWNER, "exec_kill", _PEOPLE, "End that command."),
    _request(_P.SPAWNER, "list_files", _PEOPLE, "What is in this folder of a sandbox?"),
    _request(_P.SPAWNER, "upload_chunk", _PEOPLE, "Hold this piece of a large file for a sandbox."),
    _request(_P.SPAWNER, "upload", _PEOPLE, "Put this into a sandbox."),
    _request(_P.SPAWNER, "download", _PEOPLE, "Give me this out of a sandbox."),
    _request(_P.SPAWNER, "download_chunk", _PEOPLE, "The next piece of that, please."),
    _request(_P.SPAWNER, "set_secret", _PEOPLE, "Store this value under a name, for this project's tasks."),
    _request(_P.SPAWNER, "secrets", _PEOPLE, "Which named secrets are there?"),
    _request(_P.SPAWNER, "delete_secret", _PEOPLE, "Delete this named secret."),
    _request(_P.SPAWNER, "agent_server", _PEOPLE, "Where is the agent server of this sandbox?"),
    _request(_P.EVENT_INGEST, "events", _READERS, "Which events are kept?"),
    _request(_P.EVENT_INGEST, "trajectory", _PEOPLE, "What did this agent do?"),
    _request(_P.EVENT_INGEST, "tasks", _PEOPLE, "Which tasks were there?"),
    _request(_P.EVENT_INGEST, "sandboxes", _PEOPLE, "Which sandboxes were there?"),
    _request(_P.EVENT_INGEST, "approvals", _PEOPLE, "Which agents ask for leave, and what came of it?"),
    _request(_P.EVENT_INGEST, "audit", _PEOPLE, "Is anything missing?"),
    _request(_P.EVENT_INGEST, "output", _PEOPLE, "What did its terminal show?"),
    _request(_P.EVENT_INGEST, "subscriptions", _READERS, "Which subscriptions are there?"),
    _request(_P.EVENT_INGEST, "subscribe", _READERS, "Keep events for me until I take them."),
    _request(_P.EVENT_INGEST, "unsubscribe", _READERS, "Keep them no more."),
    _request(_P.EVENT_INGEST, "dead", frozenset({_P.OPERATOR}), "What could not be handled?"),
    _request(_P.SPAWNER, "requeue", frozenset({_P.OPERATOR}), "Try this dead letter again."),
    _request(_P.EVENT_INGEST, "requeue", frozenset({_P.OPERATOR}), "Try this dead letter again."),
    _request(_P.MESSAGE_RELAY, "requeue", frozenset({_P.OPERATOR}), "Try this dead letter again."),
    _request(_P.SPAWNER, "create_consumer", frozenset({_P.EVENT_INGEST}), "Create the consumer of a subscription."),
    _request(_P.SPAWNER, "delete_consumer", frozenset({_P.EVENT_INGEST}), "Delete the consumer of a subscription."),
    _request(_P.SPAWNER, "purge_events", frozenset({_P.EVENT_INGEST}), "Remove events that all are done with."),
    _request(_P.SPAWNER, "purge_artifacts", frozenset({_P.EVENT_INGEST}), "Remove the oldest artifacts of a sandbox."),
    _request(_P.SPAWNER, "delete_dead", _REQUEUERS, "Delete a dead letter that was handled."),
    *(_request(service, "examine", _PEOPLE, "How are you?") for service in sorted(_SERVICES)),
    Subject(
        name="request.spawner.credential",
        mood=Mood.REQUEST,
        template=f"{PREFIX}.request.spawner.credential.{{project}}.{{sandbox}}",
        says="A credential for this sandbox's worker, please.",
        producers=frozenset({_P.JOINER}),
        consumers=frozenset({_P.SPAWNER}),
    ),
    Subject(
        name="request.spawner.fetch",
        mood=Mood.REQUEST,
        template=f"{PREFIX}.request.spawner.fetch.{{project}}.{{sandbox}}",
        says="A piece of what this sandbox was given, please.",
        producers=frozenset({_P.WORKER}),
        consumers=frozenset({_P.SPAWNER}),
    ),
    Subject(
        name="request.spawner.peers",
        mood=Mood.REQUEST,
        template=f"{PREFIX}.request.spawner.peers.{{project}}.{{sandbox}}",
        says="Which other agents work in this sandbox's project?",
        producers=frozenset({_P.WORKER}),
        consumers=frozenset({_P.SPAWNER}),
    ),
    _worker_request("exec", "Run this command."),
    _worker_request("exec_status", "How far is that command, and what did it say?"),
    _worker_request("exec_kill", "End that command."),
    _worker_request("list_files", "What is in this folder?"),
    _worker_request("upload", "Put this into the work tree."),
    _worker_request("download", "Give out this of the work tree."),
    Subject(
        name="inbox",
        mood=Mood.INBOX,
        template=f"{PREFIX}.inbox.{{project}}.{{sandbox}}",
        says="A message that waits for one sandbox.",
        producers=frozenset({_P.MESSAGE_RELAY}),
        consumers=frozenset({_P.MESSAGE_RELAY}),
        stream="INBOX",
    ),
    Subject(
        name="deliver",
        mood=Mood.DELIVERY,
        template=f"{PREFIX}.deliver.{{project}}.{{sandbox}}",
        says="A message, into the worker's hands; its reply is the receipt. An empty one asks if it is there.",
        producers=frozenset({_P.MESSAGE_RELAY}),
        consumers=frozenset({_P.WORKER}),
    ),
    Subject(
        name="artifact",
        mood=Mood.ARTIFACT,
        template=f"{PREFIX}.artifact.{{project}}.{{sandbox}}.{{artifact}}",
        says="Large bytes, in chunks.",
        producers=frozenset({_P.WORKER, _P.SPAWNER}),
        consumers=frozenset({_P.EVENT_INGEST, _P.SPAWNER}),
        stream="ARTIFACTS",
    ),
    Subject(
        name="output",
        mood=Mood.OUTPUT,
        template=f"{PREFIX}.output.{{project}}.{{sandbox}}",
        says="Terminal bytes of one sandbox.",
        producers=frozenset({_P.WORKER}),
        consumers=frozenset({_P.EVENT_INGEST}) | _PEOPLE,
        stream="OUTPUT",
    ),
    Subject(
        name="dead",
        mood=Mood.DEAD,
        template=f"{PREFIX}.dead.{{service}}.{{reason}}",
        says="A message that could not be handled, with its reason.",
        producers=_SERVICES,
        consumers=_SERVICES,
        stream="DEAD",
    ),
)

BY_NAME: Final[Mapping[str, Subject]] = {row.name: row for row in TABLE}

INBOX: Final = BY_NAME["inbox"]
DELIVER: Final = BY_NAME["deliver"]
ARTIFACT: Final = BY_NAME["artifact"]
OUTPUT: Final = BY_NAME["output"]
FETCH: Final = BY_NAME["request.spawner.fetch"]
CREDENTIAL: Final = BY_NAME["request.spawner.credential"]

_EVENT_TOKENS: Final = 7


def event_subject(project: str, entity: str, event_type: str) -> str:
    """Where an event of this type about this entity is said. Raises `UnsafeNameError`."""
    return f"{PREFIX}.event.{safe_name(project, 'project')}.{safe_name(entity, 'entity')}.{event_type}"


@lru_cache(maxsize=8192)  # a herd speaks on few subjects, and often; what is refused is not kept
def read_event_subject(subject: str) -> tuple[str, str, str]:
    """`(project, entity, type)` of an event's subject. Raises `ContractError` (`wrong_subject`)."""
    parts = subject.split(".")
    if len(parts) != _EVENT_TOKENS or parts[:3] != [*PREFIX.split("."), "event"]:
        raise ContractError(Code.WRONG_SUBJECT, f"{subject[:120]!r} is no event's subject")
    try:
        return safe_name(parts[3], "project"), safe_name(parts[4], "entity"), f"{parts[5]}.{parts[6]}"
    except UnsafeNameError as error:
        raise ContractError(Code.UNSAFE_NAME, str(error), field=error.field) from None


def covers(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` is for `subject`, by NATS's rules of wildcards."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        given = given[: len(wanted)] if len(given) > len(wanted) else []
    return len(wanted) == len(given) and all(want in {"*", token} for want, token in zip(wanted, given, strict=True))


def command_subject(command_type: str, project: str) -> str:
    """Where a command of this type for this project is said."""
    return BY_NAME[f"command.{command_type}"].fill(project=project)


def request_subject(request_type: str, project: str) -> str:
    """Where a request of this type about this project is asked; `fleet` asks about all of them."""
    return BY_NAME[f"request.{request_type}"].fill(project=project)


def sandbox_request_subject(request_type: str, project: str, sandbox: str) -> str:
    """Where a request is asked whose subject names a sandbox: of its worker, or by it."""
    return BY_NAME[f"request.{request_type}"].fill(project=project, sandbox=sandbox)


def dead_subject(service: str, code: Code) -> str:
    """Where a service puts what it can't handle."""
    return BY_NAME["dead"].fill(service=service, reason=code.replace("_", "-"))
