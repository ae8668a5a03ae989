"""The page of harnesses: the kinds of agents, a command that submits a task to each, and its capabilities."""

import ast
import inspect
from dataclasses import fields
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pages import EMPTY, code, page, table
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from sandherd.admin.toolchains import PYTHON_OF_KIND
from sandherd.contracts.failures import ErrorType, is_transient
from sandherd.contracts.harness_kinds import CAPABILITIES, HarnessCapabilities
from sandherd.contracts.harnesses import HARNESSES

GIVING = {
    "command": 'sandherd run "Say hello" -- sh -c "echo hello"',
    "claude": 'sandherd run "Fix the failing test" --dir . --harness claude --secret-env ANTHROPIC_API_KEY',
    "openhands": 'sandherd run "Fix the test" --harness openhands --model openai/gpt-5 --secret-env LLM_API_KEY',
    "acp": 'sandherd run "Fix the failing test" --harness acp -- gemini --acp',
}
"""For each kind, a command that submits a task to it."""
NOTES = {
    "command": """A program can publish events about its work. It writes each event as a line of JSON to the file
descriptor whose number is in the variable `SANDHERD_EVENTS_FD`:
`{"type": "agent.message", "data": {"content": "…", "content_length": 1}}`.""",
    "claude": """`ANTHROPIC_BASE_URL` is the URL of a server that implements Anthropic's Messages API, such as a proxy.
A request to a busy server is retried 6 times, within about 40 s; `CLAUDE_CODE_MAX_RETRIES` sets the number of
retries.""",
    "openhands": """`LLM_BASE_URL` is the URL of a server that implements OpenAI's chat completions API, for example for
your own model. The prices of models come from the library litellm. For a model without a price the cost is 0, unless
`LLM_INPUT_COST_PER_TOKEN` and `LLM_OUTPUT_COST_PER_TOKEN` set its prices. A request to a busy server is tried five
times, within about two minutes; `LLM_NUM_RETRIES` sets the number of tries. The SDK is large: each start uses
several seconds of CPU time.""",
    "acp": """The agent's program must exist in its sandbox: in the system or in the work tree. An agent that uses the
protocol's Python library can be run by `/sandbox/toolchains/acp/bin/python`.
The agent does not receive the reason of a denied approval (`approvals deny --reason`), because an answer in this
protocol is the id of an option, without a text. To give the agent the reason, send it a message (`sandherd send`).
There is one exception: when Sandherd accesses a file for the agent and the access is denied, the error that the agent
receives has the reason.""",
}
"""Notes for each kind."""
MEANINGS = {
    "model": "The name of the model, as the SDK accepts it.",
    "max_turns": "Maximum number of turns, as the SDK counts them.",
    "max_budget_micro_usd": "Maximum cost of the attempt, in millionths of a US dollar.",
    "disallowed_tools": "Tools that the agent can't use.",
    "skills": "Whether the agent may use skills.",
    "subagents": "Whether the agent may start sub-agents.",
    "base_url": "The URL of the model's server; overrides `LLM_BASE_URL`.",
    "max_iterations": "Maximum number of steps in a turn, as the SDK counts them.",
    "approvals": "Which tools the agent may use without approval, which need an approval, and which it may not use.",
}
"""The meanings of fields without a docstring."""
_MESSAGES = """## Messages

The table shows what a message (`sandherd send`, or the command `message-relay.send_message`) does, by its
`message_type`. The program of a `command` harness gets each message as one line of its standard input. In this line a
backslash, line feed and carriage return are written as `\\\\`, `\\n` and `\\r`, and the message's type is left out. If
the program got its task as standard input (`task_as: stdin`), messages to it are rejected.
"""
_LINE = "is written as a line"
_TYPES = (
    (code("user_message"), "is passed to the agent as the user's next message", _LINE),
    (
        code("interrupt"),
        "stops the current turn, and is then passed to the agent as the next message",
        """sends SIGINT to the program's process group, once for each message, and is then written as a line. A program
        with `task_as: stdin` gets the signal without the line. SIGINT ends a program that does not handle it, and the
        attempt then fails with `signal`.""",
    ),
    (
        code("guardian_nudge"),
        "is a message of the [monitor](monitor.md); is passed like `user_message`, after `[GUARDIAN INTERVENTION]`",
        _LINE,
    ),
    (code("system"), "is passed like `user_message`, after `[SYSTEM NOTE]`", _LINE),
    (
        code("approval"),
        "is the answer to an approval; only the command `answer_approval` sends it",
        "is not sent: a program requests no approvals",
    ),
)
_FACTS = """## Facts about calls and turns

The table shows which facts about a tool call or a turn are in the events ([events.md](events.md)) of each harness. If a
fact is not known, its field is absent. So a call without `outcome` was not necessarily successful.
"""
FACTS: tuple[tuple[str, ...], ...] = (
    (
        "`outcome` of a call",
        "for the whole program, which is one call: `ok`, `failed` or `cancelled`; for calls that it reports: its value",
        "all values; `outage` if the worker finds one",
        "all values; `outage` if the worker finds one",
        "all values except `timed_out`; `outage` if the worker finds one",
    ),
    (
        "`exit_code` of a call",
        "for the program",
        "for calls of `Bash`; absent if a status other than 0 is not an error, as with `grep`",
        "for calls of `terminal`",
        "if the agent reports it in `rawOutput` (`exit_code`, `exitCode`) or `_meta.terminal_exit`",
    ),
    (
        "`origin` of a turn",
        "`task`, `iteration`",
        "all values",
        "all values except `notice`: no turn begins without an input",
        "all values except `notice`: each turn begins with a prompt",
    ),
    (
        "`parent_tool_use_id`: the call that started the sub-agent",
        "if the program reports it",
        "yes",
        "no: it has no sub-agents",
        "if the agent reports it as `parentToolUseId` in its object inside `_meta`, as Claude's agent does",
    ),
    (
        "the event `agent.context_compacted`",
        "if the program reports it",
        "yes, with the number of tokens",
        "yes, with the number of messages",
        "no: the protocol has no message for it",
    ),
    ("`check` of a call: whether it ran tests, a linter, …", *(["yes, from the command's arguments"] * 4)),
    ("`check_passed`", *(["if `exit_code` is known and is the status of the check itself"] * 4)),
    (
        "`content_sha256` of an edited file",
        *(["yes"] * 4),
    ),
)
"""Each fact, with the report of each kind, in the order of `HARNESSES`."""
_SHOWN = """For a failed task, `sandherd tasks get TASK` shows the agent's message as `error`, and the kind of error as
`error_type`. These error types depend on the harness; [errors.md](errors.md) lists all error types.
"""
FAILURES = (
    (
        ErrorType.START,
        "the agent's SDK is not installed (the error names the command for that), or the program can't be started",
    ),
    (ErrorType.MODEL_REFUSED, "a wrong key (401), an unknown model, or no permission to use the model"),
    (
        ErrorType.MODEL_UNAVAILABLE,
        "no server at the model's address, too many requests (429), or a server error (5xx)",
    ),
    (
        ErrorType.EXIT_STATUS,
        """the program exited with another status than 0; or the agent stopped without a result, because it reached a
        limit of its options (`max_turns`) or asked a question""",
    ),
    (ErrorType.SIGNAL, "a signal that Sandherd did not send ended the program; or an `interrupt`, see above"),
    (ErrorType.OUT_OF_MEMORY, "the sandbox used more memory than `--memory` permits"),
)


def harnesses() -> str:
    """The whole page."""
    return page(
        "Harnesses",
        "libs/sandherd/contracts/harnesses.py",
        "A harness is a kind of agent with its options: it defines which program does a task in its sandbox.\n"
        "The kind `command` runs any program. The other kinds run an agent that uses a language model.\n\n"
        "`sandherd run --harness KIND` selects the kind, and `--set FIELD=VALUE` sets a field of the kind, as listed\n"
        "below. `--ask` names tools that need an approval, and `--deny` names tools that the agent may not use.\n"
        "In a [file of tasks](task-files.md), the block `harness` has the same fields.\n"
        "If a task names neither a kind nor a program, it has the kind `default`: it uses the default harness of its\n"
        "[project](scheduling.md#projects). Python packages can add kinds: [plugins.md](plugins.md).\n",
        *_abilities(),
        *(part for kind in HARNESSES for part in _kind(kind)),
        _MESSAGES,
        table(("`message_type`", "an agent with a model", "`command`"), _TYPES),
        _FACTS,
        table(("", *HARNESSES), FACTS),
        *_failures(),
    )


def _abilities() -> list[str]:
    said = _docs(HarnessCapabilities)
    rows = (
        (said[field.name], *("yes" if getattr(CAPABILITIES[kind], field.name) else "no" for kind in HARNESSES))
        for field in fields(HarnessCapabilities)
    )
    return ["## Capabilities\n", table(("", *HARNESSES), rows)]


def _kind(kind: str) -> list[str]:
    model = HARNESSES[kind]
    needs = [f"sandherd harness install {kind}"] if kind in PYTHON_OF_KIND else []
    shown = "".join(f"$ {line}\n" for line in [*needs, GIVING[kind]])
    told: dict[str, str] = {}
    for base in reversed(model.__mro__):
        told |= _docs(base) if issubclass(base, BaseModel) and base is not BaseModel else {}
    rows = [
        (code(name), code(_default(field)), told.get(name) or MEANINGS.get(name, EMPTY))
        for name, field in model.model_fields.items()
        if name != "kind"
    ]
    about = inspect.cleandoc(model.__doc__ or EMPTY)
    parts = [f"## {kind}\n", f"{about}\n", f"```console\n{shown}```\n", f"{NOTES[kind]}\n"]
    if kind in PYTHON_OF_KIND:
        parts.append(
            f"Its SDK needs Python {PYTHON_OF_KIND[kind]} or newer. If this Python is not installed, `uv` downloads "
            "it.\n"
        )
    return [*parts, table(("field", "default", "meaning"), rows)]


def _failures() -> list[str]:
    rows = ((code(kind), "retried" if is_transient(kind) else "not retried", usual) for kind, usual in FAILURES)
    return [
        "## Errors\n",
        _SHOWN,
        table(("error type", "", "usual reason"), rows),
    ]


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    if isinstance(value, BaseModel):
        return "all allowed"
    return EMPTY if value in (None, [], {}) else str(value).lower() if isinstance(value, bool) else str(value)


def _docs(model: type) -> dict[str, str]:
    """The docstrings below the fields of a class."""
    body = ast.parse(dedent(inspect.getsource(model))).body[0]
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(body.body if isinstance(body, ast.ClassDef) else [])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
