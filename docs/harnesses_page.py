"""The page of harnesses: which agents there are, how each is given a task, and what it can do."""

import ast
import inspect
from dataclasses import fields
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pages import EMPTY, code, page, table
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from sandherd.client.toolchains import KINDS
from sandherd.contracts.abilities import ABILITIES, Abilities
from sandherd.contracts.failures import ErrorType, is_transient
from sandherd.contracts.harnesses import HARNESSES

GIVING = {
    "command": 'sandherd run "Say hello" -- sh -c "echo hello"',
    "claude": 'sandherd run "Fix the failing test" --harness claude --secret-env ANTHROPIC_API_KEY',
    "openhands": 'sandherd run "Fix the test" --harness openhands --model openai/gpt-5 --secret-env LLM_API_KEY',
    "acp": 'sandherd run "Fix the failing test" --harness acp -- gemini --acp',
}
"""How a task is given to each kind."""
NOTES = {
    "command": """A program reports what it does, if it wants to, as JSON lines on the descriptor that
`SANDHERD_EVENTS_FD` names: `{"type": "agent.message", "data": {"content": "…", "content_length": 1}}`.""",
    "claude": """`ANTHROPIC_BASE_URL` names a server that speaks Anthropic's Messages API, such as a proxy.
The program asks a busy server six times more, over about forty seconds; `CLAUDE_CODE_MAX_RETRIES` says how often.""",
    "openhands": """`LLM_BASE_URL` names a server that speaks OpenAI's chat completions, such as a model of your own.
A model that litellm has no prices for costs nothing, unless `LLM_INPUT_COST_PER_TOKEN` and
`LLM_OUTPUT_COST_PER_TOKEN` say it. A busy server is asked five times, over about two minutes;
`LLM_NUM_RETRIES` says how often. A start takes seconds of a core: the SDK is large.""",
    "acp": """The agent's program has to be one that its sandbox sees: of the system, of the work tree, or, for an agent
written with the protocol's Python library, run by `/sandbox/toolchains/acp/bin/python`.""",
}
"""What else is worth knowing of each."""
_SHOWN = """`sandherd tasks get TASK` shows the agent's own words as `error`, and one of these as `error_type`;
[errors.md](errors.md) has all of them.
"""
FAILURES = (
    (ErrorType.START, "its SDK is not installed (the error names the command), or the program can't be started"),
    (ErrorType.MODEL_REFUSED, "a wrong key (401), an unknown model, no leave to use it"),
    (
        ErrorType.MODEL_UNAVAILABLE,
        "nobody at the model's address, too many requests (429), a fault of the server (5xx)",
    ),
    (ErrorType.EXIT_STATUS, "the agent gave up: its own limits (`max_turns`), a question it could not go on from"),
    (ErrorType.SIGNAL, "somebody killed its program"),
    (ErrorType.OUT_OF_MEMORY, "it took more memory than `--memory` says"),
)


def harnesses() -> str:
    """The whole page."""
    return page(
        "Harnesses",
        "libs/sandherd/contracts/harnesses.py",
        "A harness is what does a task in its sandbox: any program, or an agent with a model behind it.\n"
        "`sandherd run --harness KIND` chooses it; `--set FIELD=VALUE` sets any field below, and `--ask` and `--deny`\n"
        "name tools for which a person's leave is needed, or that it may not use.\n"
        "In a file of tasks the same stands in the block `harness`.\n",
        *_abilities(),
        *(part for kind in HARNESSES for part in _kind(kind)),
        *_failures(),
    )


def _abilities() -> list[str]:
    said = _docs(Abilities)
    rows = (
        (said[field.name], *("yes" if getattr(ABILITIES[kind], field.name) else "no" for kind in HARNESSES))
        for field in fields(Abilities)
    )
    return ["## What they can do\n", table(("", *HARNESSES), rows)]


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
        parts.append(f"Its SDK needs Python {KINDS[kind]} or newer, which uv finds or fetches.\n")
    return [*parts, table(("field", "default", "what it means"), rows)]


def _failures() -> list[str]:
    rows = ((code(kind), "tried again" if is_transient(kind) else "not tried again", usual) for kind, usual in FAILURES)
    return [
        "## How they fail\n",
        _SHOWN,
        table(("error type", "", "usual reason"), rows),
    ]


def _default(field: Any) -> str:
    if field.is_required():
        return "has to be said"
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
