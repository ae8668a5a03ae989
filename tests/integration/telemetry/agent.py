"""An agent that calls its model, repeats a tool call, gets a message to stop that, and obeys."""

import json
import os
import sys

channel = int(os.environ["SANDHERD_EVENTS_FD"])


def publish(type: str, **data: object) -> None:
    os.write(channel, json.dumps({"type": f"agent.{type}", "data": data}).encode() + b"\n")


def work(number: int, tool: str, result: str) -> None:
    publish("model_call_started", call_id=f"model-{number}")
    publish("model_call_completed", call_id=f"model-{number}", duration_ms=400)
    used = {"input_tokens": 1200, "output_tokens": 80, "cache_read_tokens": 900, "cache_write_tokens": 30}
    publish("usage", model="claude-scripted", cost_micro_usd=4200, **used)
    publish("tool_use", tool=tool, tool_use_id=f"tool-{number}", input={"command": tool})
    publish("tool_result", tool_use_id=f"tool-{number}", result=result)


for again in range(5):
    work(again, "Bash", "no such file")
print(sys.stdin.readline(), flush=True)
work(5, "Read", "the file")
