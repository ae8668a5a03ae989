"""Checks each message of the scripted agent against the protocol's models; prints their kinds as JSON.

The library's own agent would write the same. It is run with the interpreter of the toolchain.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from acp import schema

AGENT = Path(__file__).parent / "scripted_agent.py"
ANSWERS = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/fork": schema.ForkSessionResponse,
    "session/prompt": schema.PromptResponse,
}
SENT_MODELS = {
    "session/update": schema.SessionNotification,
    "session/request_permission": schema.RequestPermissionRequest,
    "fs/read_text_file": schema.ReadTextFileRequest,
    "fs/write_text_file": schema.WriteTextFileRequest,
}
GIVEN = {
    "session/request_permission": {"outcome": {"outcome": "selected", "optionId": "yes"}},
    "fs/read_text_file": {"content": "words"},
    "fs/write_text_file": {},
}
TASK = """say a
think b
plan c|d
tool t1 execute {"command": "ls"}
more t1 {"status": "in_progress"}
done t1 e
tool t2 read
failed t2 f
may t3 go
may! t4 go
read /a 1 2
read /a
write /a words
cost 0.25
tokens 30 4"""
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("initialize", {"protocolVersion": 1, "clientCapabilities": {}}),
    ("session/new", {"cwd": "/", "mcpServers": []}),
    ("session/prompt", {"sessionId": "sess-1", "prompt": [{"type": "text", "text": TASK}]}),
    ("session/load", {"sessionId": "sess-1", "cwd": "/", "mcpServers": []}),
    ("session/fork", {"sessionId": "sess-1", "cwd": "/", "mcpServers": []}),
]


def hold(model: Any, fields: dict[str, Any]) -> None:
    """Raise if a message does not fit; a field that the model does not know would be missing in its output."""
    given = model.model_validate(fields).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert given == fields, (given, fields)


def main() -> None:
    kinds: list[str] = []
    agent = subprocess.Popen(
        [sys.executable, str(AGENT), "forks", "model"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    requests_to, replies = agent.stdin, agent.stdout
    assert requests_to is not None
    assert replies is not None

    def send(message: dict[str, Any]) -> None:
        requests_to.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        requests_to.flush()

    for number, (requested, params) in enumerate(REQUESTS):
        send({"id": number, "method": requested, "params": params})
        while "method" in (message := json.loads(replies.readline())):
            method = message["method"]
            hold(SENT_MODELS[method], message["params"])
            kinds.append(message["params"].get("update", {}).get("sessionUpdate", method))
            if "id" in message:
                send({"id": message["id"], "result": GIVEN[method]})
        hold(ANSWERS[requested], message["result"])
        kinds.append(requested)
    requests_to.close()
    assert agent.wait() == 0
    print(json.dumps(sorted(set(kinds))))


if __name__ == "__main__":
    main()
