"""An agent without a model: it performs the steps of a file, and reports them by ACP or as a `command` program."""

# ruff: noqa: TID251  # a program of its own, which may block

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, ClassVar

Json = dict[str, Any]
CLOCK = Path("/home/agent/.clock")
RANDOM = Random(os.environ.get("RECORDED_STEPS"))


def steps() -> list[Json]:
    """The remaining steps; the file is read once, and removed, so that the agent's own tools do not find it."""
    path = Path(os.environ["RECORDED_STEPS"])
    found: list[Json] = json.loads(path.read_text())
    path.unlink()
    return found


def begin(step: Json) -> None:
    """Advance the recording's clock for a step."""
    time.sleep(0.06)  # the worker first sets the times of what was reported before
    clock = step["clock"] if step["clock"] is not None else round(RANDOM.uniform(2.5, 11), 1)
    with CLOCK.open("a") as file:
        file.write(f"{time.time():.6f} {clock} {'fault' if step['at_fault'] else 'step'}\n")


def published() -> int:
    """The number of edits that the worker has published, as counted by the recorder."""
    try:
        return int(Path("/home/agent/.edited").read_text())
    except (OSError, ValueError):
        return 0


def perform(kind: str, act: Json) -> tuple[str, int | None]:
    """Perform a step; returns the text of its result and an exit status, -1 for an error without one.

    An edit ends when it is published, or after a while: a worker would join edits that follow each other so fast.
    """
    before = published()
    time.sleep(0.06)  # the worker sets the time of the beginning, also if the call advances the clock
    done = _perform(kind, act)
    until = time.monotonic() + (1.5 if kind in {"Write", "Edit"} and done[1] is None else 0)
    while published() == before and time.monotonic() < until:
        time.sleep(0.02)
    return done


def _perform(kind: str, act: Json) -> tuple[str, int | None]:  # noqa: PLR0911  # one result for each act
    try:
        match kind:
            case "Run":
                done = subprocess.run(
                    act["command"], shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
                )
                return done.stdout, done.returncode
            case "Read":
                lines = Path(act["path"]).read_text().splitlines(keepends=True)
                start = (act["offset"] or 1) - 1
                return "".join(lines[start : start + (act["limit"] or 2000)]), None
            case "Write":
                Path(act["path"]).parent.mkdir(parents=True, exist_ok=True)
                Path(act["path"]).write_text(act["content"])
                return f"wrote {len(act['content'])} bytes", None
            case "Edit":
                text = Path(act["path"]).read_text()
                if text.count(act["old"]) != 1:
                    return f"old text occurs {text.count(act['old'])} times in {act['path']}", -1
                Path(act["path"]).write_text(text.replace(act["old"], act["new"]))
                return "replaced 1 occurrence", None
    except OSError as error:
        return f"{error.strerror}: {act['path']}", -1
    return str(act.get("input", {}).get("result", "")), None


def given(kind: str, act: Json) -> Json:
    """The input of the call."""
    if kind == "Run":
        return {"command": act["command"]}
    if kind == "Tool":
        return {name: value for name, value in act["input"].items() if name != "result"}
    return {name: value for name, value in act.items() if value is not None}


class Command:
    """Reports on the events pipe."""

    TOOLS: ClassVar = {"Run": "shell", "Read": "read_file", "Write": "write_file", "Edit": "edit_file"}

    def __init__(self) -> None:
        self.pipe = os.fdopen(int(os.environ["SANDHERD_EVENTS_FD"]), "w")
        self.calls = 0

    def publish(self, event: str, **data: Any) -> None:
        self.pipe.write(json.dumps({"type": f"agent.{event}", "data": data}) + "\n")
        self.pipe.flush()

    def main(self) -> None:
        for step in steps():
            begin(step)
            if step["thinking"]:
                self.publish("thinking", content=step["thinking"])
            if step["text"]:
                self.publish("message", content=step["text"], content_length=len(step["text"]))
                print(step["text"], flush=True)
            for kind, act in zip(step["kinds"], step["acts"], strict=True):
                self.call(kind, act)
            self.publish("usage", input_tokens=9000, output_tokens=120, cost_micro_usd=30_000)
        self.pipe.close()

    def call(self, kind: str, act: Json) -> None:
        self.calls += 1
        name = f"call-{self.calls:04}"
        tool = self.TOOLS.get(kind) or act["name"]
        self.publish("tool_use", tool=tool, tool_use_id=name, input=given(kind, act))
        text, status = perform(kind, act)
        bad = status not in {None, 0}
        facts: Json = {"outcome": "failed" if bad else "ok"}
        facts |= {"exit_code": status} if status is not None and status >= 0 else {}
        self.publish(
            "tool_completed", tool=tool, tool_use_id=name, tool_input=given(kind, act), tool_response=text, **facts
        )
        self.publish("tool_result", tool_use_id=name, result=text[:5000], is_error=bad, **facts)


class Acp:
    """Implements the Agent Client Protocol on its standard streams: JSON-RPC 2.0, a message a line."""

    KINDS: ClassVar = {"Run": "execute", "Read": "read", "Write": "edit", "Edit": "edit"}

    def __init__(self) -> None:
        self.calls = self.messages = self.request_count = 0
        self.left = steps()

    def write(self, message: Json) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def update(self, change: str, **fields: Any) -> None:
        self.write(
            {"method": "session/update", "params": {"sessionId": "s-1", "update": {"sessionUpdate": change, **fields}}}
        )

    def main(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "id" in message and "method" in message:
                self.write({"id": message["id"], "result": self.answer(message["method"])})

    def answer(self, method: str) -> Json:
        if method == "initialize":
            return {"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": {"name": "recorded", "version": "1.0"}}
        if method == "session/new":
            return {"sessionId": "s-1"}
        while self.left:
            step = self.left.pop(0)
            begin(step)
            self.perform(step)
            if step["tokens"] < 0:  # the turn ends here
                break
        return {"stopReason": "end_turn", "usage": {"totalTokens": 9120, "inputTokens": 9000, "outputTokens": 120}}

    def perform(self, step: Json) -> None:
        self.messages += 1
        for kind, text in (("agent_thought_chunk", step["thinking"]), ("agent_message_chunk", step["text"])):
            if text:
                self.update(kind, content={"type": "text", "text": text}, messageId=f"m-{self.messages}")
        begun = [self.begin(kind, act) for kind, act in zip(step["kinds"], step["acts"], strict=True)]
        for name, (kind, act) in zip(begun, zip(step["kinds"], step["acts"], strict=True), strict=True):
            self.end(name, kind, act)

    def begin(self, kind: str, act: Json) -> str:
        self.calls += 1
        name = f"call_{self.calls:04}"
        title = act.get("command") or act.get("path") or act.get("name")
        raw = given(kind, act)
        self.update(
            "tool_call",
            toolCallId=name,
            title=title,
            kind=self.KINDS.get(kind, "other"),
            status="pending",
            rawInput=raw,
        )
        return name

    def end(self, name: str, kind: str, act: Json) -> None:
        if os.environ.get("RECORDED_ASKS", "\0") in json.dumps(given(kind, act)) and not self.may(name, act):
            self.done(name, "failed", "the call was not permitted", None)
            return
        text, status = perform(kind, act)
        self.done(name, "failed" if status not in {None, 0} else "completed", text, status)

    def done(self, name: str, status: str, text: str, code: int | None) -> None:
        content = [{"type": "content", "content": {"type": "text", "text": text}}]
        raw = {"rawOutput": {"output": text, "exit_code": code}} if code is not None and code >= 0 else {}
        self.update("tool_call_update", toolCallId=name, status=status, content=content, **raw)

    def may(self, name: str, act: Json) -> bool:
        self.request_count += 1
        options = [
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        call = {"toolCallId": name, "title": act.get("command", "edit"), "kind": "execute", "rawInput": act}
        params = {"sessionId": "s-1", "toolCall": call, "options": options}
        self.write({"id": f"ask-{self.request_count}", "method": "session/request_permission", "params": params})
        for line in sys.stdin:
            message = json.loads(line)
            if message.get("id") == f"ask-{self.request_count}":
                return bool(message["result"]["outcome"].get("optionId") == "yes")
        return False


if __name__ == "__main__":
    (Acp() if sys.argv[1] == "acp" else Command()).main()
