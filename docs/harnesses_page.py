"""The page of harnesses: the kinds of agents, how to give each a task, and its capabilities."""

import ast
import inspect
from dataclasses import fields
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pages import EMPTY, code, page, table
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from sandherd.admin.toolchains import KINDS
from sandherd.contracts.failures import ErrorType, is_transient
from sandherd.contracts.harness_kinds import CAPABILITIES, HarnessCapabilities
from sandherd.contracts.harnesses import HARNESSES

GIVING = {
    "command": 'sandherd run "Say hello" -- sh -c "echo hello"',
    "claude": 'sandherd run "Fix the failing test" --dir . --harness claude --secret-env ANTHROPIC_API_KEY',
    "openhands": 'sandherd run "Fix the test" --harness openhands --model openai/gpt-5 --secret-env LLM_API_KEY',
    "acp": 'sandherd run "Fix the failing test" --harness acp -- gemini --acp',
}
"""How to give each kind a task."""
NOTES = {
    "command": """A program can report what it does as JSON lines on the file descriptor in `SANDHERD_EVENTS_FD`:
`{"type": "agent.message", "data": {"content": "…", "content_length": 1}}`.""",
    "claude": """`ANTHROPIC_BASE_URL` is the URL of a server with Anthropic's Messages API, such as a proxy.
The program retries a request to a busy server 6 times, over about 40 s; `CLAUDE_CODE_MAX_RETRIES` sets that.""",
    "openhands": """`LLM_BASE_URL` is the URL of a server with OpenAI's chat completions, such as your own model.
For a model that litellm has no prices for the cost is 0, unless `LLM_INPUT_COST_PER_TOKEN` and
`LLM_OUTPUT_COST_PER_TOKEN` set them. A request to a busy server is tried five times, over about two minutes;
`LLM_NUM_RETRIES` sets how often. A start takes seconds of a core: the SDK is large.""",
    "acp": """The agent's program has to be visible in its sandbox: from the system, the work tree, or, for an agent
written with the protocol's Python library, run by `/sandbox/toolchains/acp/bin/python`.
The agent does not get the reason of a denied approval (`approvals deny --reason`): the protocol's answer is the id of
an option, without a text. Only the error of a file access that Sandherd does for the agent has it. Send the agent a
message instead (`sandherd send`).""",
}
"""Notes on each kind."""
_MESSAGES = """## Messages

What a message (`message-relay.send_message`, `sandherd send`) does, by its `message_type`. To a `command` harness
every message is one line on the standard input of its program, in which a backslash, line feed and carriage return
are written as `\\\\`, `\\n` and `\\r`. The type is not in the line. A program whose standard input was its task
(`task_as: stdin`) takes no messages: they are rejected.
"""
_LINE = "the line"
_TYPES = (
    (code("user_message"), "it is delivered as the user's next message", _LINE),
    (
        code("interrupt"),
        "stops the current turn; then it is delivered as the next message",
        """SIGINT to the program's process group, once for each message; then the line. Also a program that takes no
        messages gets the signal. One that does not handle SIGINT ends by it, and the attempt fails (`signal`).""",
    ),
    (code("guardian_nudge"), "as `user_message`, with `[GUARDIAN INTERVENTION]` before it", _LINE),
    (code("system"), "as `user_message`, with `[SYSTEM NOTE]` before it", _LINE),
    (
        code("approval"),
        "the answer to an approval, sent only by `answer_approval`",
        "none: a program requests no approvals",
    ),
)
_FACTS = """## Facts about calls and turns

What agents report differs. Where a harness does not report a fact, its field is absent from the events
([events.md](events.md)): absent means unknown, not `ok` or none.
"""
FACTS: tuple[tuple[str, ...], ...] = (
    (
        "`outcome` of a call",
        "of the program as one call: `ok`, `failed`, `cancelled`; of the calls that it reports, what it reports",
        "all; `outage` where the worker finds one",
        "all; `outage` where the worker finds one",
        "all but `timed_out`; `outage` where the worker finds one",
    ),
    (
        "`exit_code` of a call",
        "of the program",
        "of `Bash`; not where another status than 0 is no error, such as that of `grep`",
        "of `terminal`",
        "where the agent reports it in `rawOutput` (`exit_code`, `exitCode`) or `_meta.terminal_exit`",
    ),
    (
        "`origin` of a turn",
        "`task`, `iteration`",
        "all, with `notice`",
        "all but `notice`: no turn begins by itself",
        "all but `notice`: a turn is a prompt",
    ),
    (
        "`parent_tool_use_id`: which sub-agent",
        "what the program reports",
        "yes",
        "no: it has no sub-agents",
        "where the agent reports it as `parentToolUseId` in its part of `_meta`, as Claude's does",
    ),
    (
        "`agent.context_compacted`",
        "what the program reports",
        "yes, with tokens",
        "yes, with the number of messages",
        "no: the protocol has nothing for it",
    ),
    ("`check` of a call", *(["yes, from the command's arguments"] * 4)),
    ("`check_passed`", *(["if `exit_code` is known and the command's status is that of the check"] * 4)),
    (
        "`content_sha256` of an edited file",
        *(["yes"] * 4),
    ),
)
"""The facts, and for each kind, in the order of `HARNESSES`, what it reports."""
_SHOWN = """`sandherd tasks get TASK` shows the agent's own message as `error`, and one of these as `error_type`;
[errors.md](errors.md) lists all of them.
"""
FAILURES = (
    (ErrorType.START, "its SDK is not installed (the error names the command), or the program can't be started"),
    (ErrorType.MODEL_REFUSED, "a wrong key (401), an unknown model, no permission to use it"),
    (
        ErrorType.MODEL_UNAVAILABLE,
        "no server at the model's address, too many requests (429), a server error (5xx)",
    ),
    (ErrorType.EXIT_STATUS, "the agent gave up: its own limits (`max_turns`), or a question that stopped it"),
    (ErrorType.SIGNAL, "its program was killed from outside Sandherd"),
    (ErrorType.OUT_OF_MEMORY, "it exceeded `--memory`"),
)


def harnesses() -> str:
    """The whole page."""
    return page(
        "Harnesses",
        "libs/sandherd/contracts/harnesses.py",
        "A harness does a task in its sandbox: any program, or an agent with a model.\n"
        "`sandherd run --harness KIND` selects it; `--set FIELD=VALUE` sets any field below; `--ask` names tools that\n"
        "need an approval, and `--deny` tools that the agent may not use.\n"
        "In a [file of tasks](task-files.md), the block `harness` has the same fields.\n"
        "Without a program and a kind, it is the default of the [project](scheduling.md#projects), kind `default`.\n"
        "Other distributions can add kinds: [plugins.md](plugins.md).\n",
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
    needs = [f"sandherd harness install {kind}"] if kind in KINDS else []
    shown = "".join(f"$ {line}\n" for line in [*needs, GIVING[kind]])
    told: dict[str, str] = {}
    for base in reversed(model.__mro__):
        told |= _docs(base) if issubclass(base, BaseModel) and base is not BaseModel else {}
    rows = [
        (code(name), code(_default(field)), told.get(name, EMPTY))
        for name, field in model.model_fields.items()
        if name != "kind"
    ]
    about = inspect.cleandoc(model.__doc__ or EMPTY)
    parts = [f"## {kind}\n", f"{about}\n", f"```console\n{shown}```\n", f"{NOTES[kind]}\n"]
    if kind in KINDS:
        parts.append(f"Its SDK needs Python {KINDS[kind]} or newer, which uv finds or downloads.\n")
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
