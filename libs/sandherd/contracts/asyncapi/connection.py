"""The parts of the documents that NATS defines: how a program connects, and how a subscriber pulls and acknowledges.

Sources: ADR-8 and ADR-15 of NATS (JetStream), and its documentation of credentials files.
"""

from typing import Final

from sandherd.contracts.asyncapi.messages import message
from sandherd.contracts.events import EVENTS
from sandherd.contracts.principals import Principal
from sandherd.contracts.schemas import Document
from sandherd.contracts.subscriptions import DOMAIN, STREAM

_FILE: Final = (
    "A credentials file: a JWT with the permissions of the role, and the nkey (Ed25519) whose seed signs the broker's "
    "nonce."
)
_REPLIES_OF_PROGRAMS: Final = "Replies are only delivered below `_INBOX_<public key>`, the `sub` of the JWT"
_REPLIES_IN_SANDBOXES: Final = (
    "below `_INBOX_<sandbox>-join` to the joiner, whose credentials file permits `request.spawner.credential`, and "
    "below `_INBOX_<sandbox>` to the worker, which signs with a key of its own and has the JWT from that reply"
)
SERVERS: Final[Document] = {
    "broker": {
        "host": "{host}:{port}",
        "pathname": "",
        "protocol": "nats",
        "description": "A nats-server, or several of a cluster; with TLS if it is configured. `sandherd status` shows "
        "the address of a local herd.",
        "variables": {
            "host": {"default": "localhost", "description": "The host of the broker."},
            "port": {"default": "4222", "description": "The port for clients."},
        },
        "security": [{"$ref": "#/components/securitySchemes/credentials"}],
    }
}
REPLY_ADDRESS: Final[Document] = {
    "location": "$message.header#/reply-to",
    "description": "The reply subject of the NATS message, which is beside its headers; below the requester's inbox.",
}
_CONSUMER: Final = {"description": "The consumer, as the reply to `event-ingest.subscribe` names it."}
_PULLING_ROLE: Final = Principal.SUBSCRIBER
_API: Final = f"$JS.{DOMAIN}.API.CONSUMER"


def security(role: Principal | None = None) -> Document:
    """How programs authenticate, and where their replies are delivered: for one role, or for all."""
    replies = f"{_REPLIES_OF_PROGRAMS}; in a sandbox, {_REPLIES_IN_SANDBOXES}."
    if role is not None:
        replies = (
            f"Replies are only delivered {_REPLIES_IN_SANDBOXES}."
            if role is Principal.WORKER
            else f"{_REPLIES_OF_PROGRAMS}."
        )
    return {"credentials": {"type": "asymmetricEncryption", "description": f"{_FILE} {replies}"}}


def channels() -> Document:
    """The subjects of the JetStream API that a subscriber uses."""
    delivered = {name: {"$ref": f"#/components/messages/{name}"} for name in [*EVENTS, "pull-status"]}
    return {
        "jetstream.info": _api("INFO", "Return the state of a subscription's consumer.", "consumer-info-request"),
        "jetstream.info.reply": _replies("The reply to `jetstream.info`.", "consumer-info"),
        "jetstream.next": _api("MSG.NEXT", "Pull events of a subscription.", "pull-request"),
        "jetstream.next.reply": {
            "address": None,
            "description": "Events, with the subject under which they are stored, and statuses of the pull request.",
            "messages": delivered,
        },
        "jetstream.acknowledge": _replies("The reply subject of a delivered event, `$JS.ACK.…`.", "acknowledgement"),
    }


def operations() -> Document:
    """The operations of a subscriber on these channels."""
    found = channels()
    summaries = {
        "jetstream.info": found["jetstream.info"]["description"],
        "jetstream.next": found["jetstream.next"]["description"],
        "jetstream.acknowledge": "Acknowledge a delivered event, or return it.",
    }
    return {f"{_PULLING_ROLE}.send.{name}": _operation(name, summary, found) for name, summary in summaries.items()}


def messages() -> Document:
    """The messages on these channels."""
    texts = {
        "consumer-info-request": ("An empty message.", _text("ConsumerInfoRequest", maxLength=0)),
        "consumer-info": ("The state of a consumer, by NATS.", {"type": "object", "title": "ConsumerInfo"}),
        "pull-request": ("How many events to deliver, and for how long to wait.", _PULL_REQUEST),
        "pull-status": (_STATUS, _text("PullStatus", maxLength=0)),
        "acknowledgement": (_ACKNOWLEDGEMENT, _text("Acknowledgement", pattern=_ACKNOWLEDGEMENT_PATTERN)),
    }
    return {name: message(name, text, payload, "jetstream") for name, (text, payload) in texts.items()}


_STATUS: Final = """The header `Status`: 100 is a heartbeat; 404, 408 and 409 end the pull request.

Only a message without a reply subject is a status."""
_ACKNOWLEDGEMENT: Final = "`+ACK`: handled. `-NAK`: redeliver. `+WPI`: not finished yet. `+TERM`: never redeliver."
_ACKNOWLEDGEMENT_PATTERN: Final = r'^(\+ACK|-NAK( \{"delay": ?[0-9]+\})?|\+WPI|\+TERM)$'
_PULL_REQUEST: Final[Document] = {
    "type": "object",
    "title": "PullRequest",
    "properties": {
        "batch": {"type": "integer", "minimum": 1, "description": "Maximum events."},
        "expires": {"type": "integer", "minimum": 1, "description": "Nanoseconds to wait, at most a minute."},
        "idle_heartbeat": {"type": "integer", "minimum": 1, "description": "Nanoseconds between heartbeats."},
        "max_bytes": {"type": "integer", "minimum": 1, "description": "Maximum bytes of the events."},
    },
    "required": ["batch"],
}


def _text(title: str, **limits: object) -> Document:
    return {"type": "string", "title": title, **limits}


def _api(verb: str, description: str, name: str) -> Document:
    return {
        "address": f"{_API}.{verb}.{STREAM}.{{consumer}}",
        "description": description,
        "parameters": {"consumer": _CONSUMER},
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
    }


def _replies(description: str, name: str) -> Document:
    return {
        "address": None,
        "description": description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
    }


def _operation(name: str, summary: str, document: Document) -> Document:
    operation: Document = {
        "action": "send",
        "channel": {"$ref": f"#/channels/{name}"},
        "summary": summary,
        "tags": [{"name": "jetstream"}],
        "messages": _messages_of(name, document),
    }
    reply = f"{name}.reply"
    if reply in document:
        channel = {"$ref": f"#/channels/{reply}"}
        operation["reply"] = {"address": REPLY_ADDRESS, "channel": channel, "messages": _messages_of(reply, document)}
    return operation


def _messages_of(name: str, document: Document) -> list[Document]:
    return [{"$ref": f"#/channels/{name}/messages/{message_name}"} for message_name in document[name]["messages"]]
