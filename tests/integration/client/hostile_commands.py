"""All commands, by what each can show of a hostile herd: replies, refusals, events, or nothing."""

from dataclasses import dataclass, field

from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal

SANDBOX, TASK = "sbx-one", "task-one"
VALUE, BATCH, SIGNING = "value", "batch.yaml", "signing"
"""Files in the current directory: a secret's value, a batch of one task whose secret is not stored, and the secret that
signs webhooks."""
Words = tuple[str, ...]
_SECRET = ["--secret", "A=absent"]

ASKING: dict[Words, list[str]] = {
    ("run",): ["do it", "--no-follow", "--", "true"],  # its harness is not among the hostile ones
    ("exec",): [SANDBOX, "--status", "exc-one"],
    ("cp",): [f"{SANDBOX}:x", "here"],
    ("ls",): [SANDBOX, "-r"],
    ("port-forward",): [SANDBOX, ":80"],
    ("files",): [TASK],
    ("diff",): [TASK],
    ("branches", "list"): [],
    ("branches", "show"): [TASK],
    ("branches", "fetch"): [TASK],
    ("branches", "push"): [TASK, "--approve-paths", "--yes", "--timeout", "1s"],
    ("branches", "pr"): [TASK, "--timeout", "1s"],
    ("branches", "merge"): [TASK, "--wait", "--timeout", "1s"],
    ("branches", "delete"): [TASK, "--yes", "--timeout", "1s"],
    ("branches", "diff"): [TASK],
    ("artifacts", "list"): [SANDBOX],
    ("artifacts", "get"): ["art-one"],
    ("agent-server",): [SANDBOX, "--key"],
    ("runtimes",): [],
    ("events",): [SANDBOX],
    ("trajectory",): [SANDBOX],
    ("logs",): [SANDBOX],
    ("audit",): [SANDBOX],
    ("doctor",): [],
    ("tasks", "list"): [],
    ("tasks", "get"): [TASK],
    ("tasks", "submit"): [BATCH],
    ("tasks", "cancel"): [TASK],
    ("tasks", "wait"): [TASK, "--timeout", "5s"],
    ("top",): ["--once"],
    ("costs",): [],
    ("overview",): [],
    ("stats",): [],
    ("transcript",): [SANDBOX],
    ("compare",): [SANDBOX, SANDBOX],
    ("search",): ["word"],
    ("history", "verify"): [SANDBOX],
    ("replay",): [SANDBOX, "--speed", "1000000"],
    ("sandboxes", "list"): [],
    ("sandboxes", "get"): [SANDBOX],
    ("sandboxes", "logs"): [SANDBOX],
    ("sandboxes", "create"): ["--runtime", "absent"],
    ("sandboxes", "pause"): [SANDBOX],
    ("sandboxes", "resume"): [SANDBOX],
    ("sandboxes", "terminate"): [SANDBOX],
    ("sandboxes", "prune"): ["--now"],
    ("approvals", "list"): ["--all"],
    ("monitor", "show"): [SANDBOX],
    ("monitor", "mute"): [SANDBOX, "loop"],
    ("monitor", "unmute"): [SANDBOX, "loop"],
    ("subscriptions", "create"): ["mine"],
    ("subscriptions", "list"): [],
    ("subscriptions", "delete"): ["mine"],
    ("webhooks", "create"): ["mine", "https://example.com/events"],
    ("webhooks", "list"): [],
    ("webhooks", "show"): ["mine"],
    ("webhooks", "test"): ["mine"],
    ("webhooks", "rotate"): ["mine"],
    ("webhooks", "replay"): ["mine", "--dead-letters"],
    ("webhooks", "delete"): ["mine"],
    ("webhooks", "secret"): [],
    ("webhooks", "deliver"): ["mine", "https://example.com/events", "--secret-file", SIGNING],
    ("secrets", "set"): ["mine", "--file", VALUE],
    ("secrets", "list"): [],
    ("secrets", "delete"): ["mine"],
    ("tokens", "create"): ["mine"],
    ("tokens", "list"): [],
    ("tokens", "revoke"): ["mine"],
    ("open",): ["--print", "--url", "http://127.0.0.1:9"],
    ("projects", "list"): [],
    ("projects", "show"): ["default"],
    ("projects", "create"): ["default", "--tasks", "1"],
    ("projects", "set"): ["default", "--tasks", "1"],
    ("budgets", "list"): [],
    ("budgets", "show"): [TASK],
    ("budgets", "grant"): [TASK, "turns=1"],
    ("budgets", "set"): ["default", "--day", "turns=1"],
    ("history", "status"): [],
    ("history", "hold"): ["default", "--reason", "case 7"],
    ("history", "release"): ["default"],
    ("history", "archives"): [],
    ("history", "restore"): ["2026-08-21"],
    ("schedules", "create"): ["mine", "--cron", "0 3 * * *", "--", "do it", "--", "true"],
    ("schedules", "list"): [],
    ("schedules", "show"): ["mine"],
    ("schedules", "pause"): ["mine"],
    ("schedules", "resume"): ["mine"],
    ("schedules", "trigger"): ["mine"],
    ("schedules", "delete"): ["mine"],
    ("monitor", "report"): [],
    ("monitor", "replay"): [],
    ("dead", "list"): [],
    ("dead", "show"): ["1"],
    ("dead", "requeue"): ["1"],
}
"""Commands that send a request to the herd and print its reply."""
REFUSED: dict[Words, list[str]] = ASKING | {
    ("run",): ["do it", *_SECRET, "--", "true"],
    ("exec",): [SANDBOX, "--", "true"],
    ("tasks", "retry"): [TASK],
    ("sandboxes", "create"): _SECRET,
    ("sandboxes", "extend"): [SANDBOX, "5m"],
}
"""Commands that end with a refusal of the herd."""


@dataclass(frozen=True)
class Given:
    """A command that waits for an event about what it has sent: here the hostile event that ends it."""

    words: list[str]
    event: str
    taken_by: Principal = Principal.SPAWNER
    state: SandboxState = SandboxState.RUNNING
    """The state of the sandbox before the command."""
    data: dict[str, str] = field(default_factory=dict)
    """The fields that the event must have."""


_REFUSED, _RELAY = "sandbox.refused", Principal.MESSAGE_RELAY
GIVEN: dict[Words, list[Given]] = {
    ("run",): [Given(["do it", "--", "true"], "task.rejected")],
    ("send",): [Given([SANDBOX, "hello", "-o", form], "message.rejected", _RELAY) for form in ("table", "json")],
    ("tasks", "retry"): [Given([TASK], "task.refused", data={"command": "spawner.retry_task"})],
    ("sandboxes", "create"): [
        Given([], _REFUSED, data={"command": "spawner.create_sandbox"}),
        Given([], "sandbox.failed"),
    ],
    ("sandboxes", "pause"): [Given([SANDBOX], _REFUSED, data={"command": "spawner.pause_sandbox"})],
    ("sandboxes", "resume"): [
        Given([SANDBOX], _REFUSED, state=SandboxState.PAUSED, data={"command": "spawner.resume_sandbox"})
    ],
    ("sandboxes", "extend"): [Given([SANDBOX, "5m"], _REFUSED, data={"command": "spawner.extend_sandbox"})],
    ("approvals", "grant"): [Given([SANDBOX, "toolu_1"], "message.rejected", _RELAY)],
    ("approvals", "deny"): [Given([SANDBOX, "toolu_1"], "message.rejected", _RELAY)],
}
FOLLOWING: frozenset[Words] = frozenset({("run",), ("events",), ("logs",)})
"""Commands that show live events or output until their end."""
NAMED: frozenset[Words] = frozenset(
    {
        ("up",), ("down",), ("status",), ("services", "logs"), ("provision",), ("backup",), ("restore",), ("reread",),
        ("credentials", "create"), ("credentials", "revoke"), ("harness", "install"), ("harness", "list"),
        ("image", "build"), ("image", "context"), ("identity", "init"), ("identity", "push"), ("config", "show"),
        ("context", "list"), ("context", "show"), ("context", "add"), ("context", "use"), ("context", "remove"),
    }
)  # fmt: skip
"""Local commands, which show no text of a sandbox or another project, except ids and types of events."""
