"""The tools, as an agent is told of them."""

from typing import Any, Final


def _tool(name: str, says: str, required: tuple[str, ...] = (), **arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": text} for argument, text in arguments.items()}
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"name": name, "description": says, "inputSchema": schema}


TOOLS: Final = (
    _tool(
        "send_message",
        "Say something to another agent of this project. It reads it in the middle of what it does, and may answer in "
        "the same way.",
        ("recipient", "content"),
        recipient="The name of its sandbox, as list_peers gives it.",
        content="What to say: at most 16,000 characters.",
    ),
    _tool("list_peers", "List the other agents that work in this project now: their sandboxes, and what they do."),
    _tool(
        "ask_human",
        "Ask a person something that only a person can decide, and wait for the answer. It may take long; nobody may "
        "answer at all.",
        ("question",),
        question="The question, with all that is needed to answer it: at most 4,000 characters.",
    ),
)
