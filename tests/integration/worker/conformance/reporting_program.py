"""A program as an agent, for the `command` harness: it does what its task says, line by line, and reports it.

`say TEXT`; `edit PATH TEXT` and `run COMMAND`, published as tool calls with begin and end; `spend` publishes usage;
`hear TEXT` waits for that line on standard input; `prompts` publishes all that it has received. A SIGINT stops it: it
continues with the next line of its standard input, which is one message.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

EVENTS = os.fdopen(int(os.environ["SANDHERD_EVENTS_FD"]), "w")
RECEIVED: "queue.Queue[str]" = queue.Queue()
PROMPTS = [os.environ["SANDHERD_TASK"]]


def publish(event: str, **data: Any) -> None:
    EVENTS.write(json.dumps({"type": f"agent.{event}", "data": data}) + "\n")
    EVENTS.flush()


def publish_text(text: str) -> None:
    publish("message", content=text, content_length=len(text))


def use(tool: str, rest: str) -> None:
    """Publish one tool call from its begin to its end."""
    call = f"call-{os.urandom(4).hex()}"
    publish("tool_use", tool=tool, tool_use_id=call, input={"of": rest})
    if tool == "edit":
        path, _, text = rest.partition(" ")
        Path(path).write_text(text + "\n")
        result = "written"
    else:
        result = subprocess.run(rest, shell=True, stdout=subprocess.PIPE, text=True, check=False).stdout
        print(result, end="", flush=True)
    publish("tool_result", tool_use_id=call, result=result)
    publish("tool_completed", tool=tool, tool_use_id=call)


def receive(text: str) -> None:
    while text not in RECEIVED.get():
        pass
    publish_text(f"heard {text}")


def do(line: str) -> None:
    word, _, rest = line.partition(" ")
    match word:
        case "say":
            publish_text(rest)
        case "hear":
            receive(rest)
        case "prompts":
            publish_text(json.dumps(PROMPTS))
        case "spend":
            publish("usage", input_tokens=30, output_tokens=4, cost_micro_usd=250_000)
        case "edit" | "run":
            use(word, rest)


def listen() -> None:
    for line in sys.stdin:
        RECEIVED.put(line.rstrip("\n").replace("\\n", "\n"))


def main() -> None:
    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            for line in PROMPTS[-1].splitlines():
                do(line)
            break
        except KeyboardInterrupt:
            PROMPTS.append(RECEIVED.get())
    EVENTS.close()
    os._exit(0)  # the other thread is still reading


if __name__ == "__main__":
    main()
