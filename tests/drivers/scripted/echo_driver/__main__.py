"""An agent that executes its commands, one after the other.

The task and each message are lines of words: `say TEXT`, `print TEXT`, `usage IN OUT COST`, `use TOOL`, `raw JSON`,
`wait` (until it is interrupted), `spawn SCRIPT` (without waiting for it), `hang` (responds to nothing), `die` (by
SIGKILL), `exit N`, `raise`, `fail TEXT` (as the outcome). A message during `wait` is reported as `heard`, and the turn
continues; one during an approval is held until the decision, which is reported by `holds`; any other message is a
separate turn.
"""

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

from sandherd_drivers.wire import Begin, Interrupt, Message, Stop, Wire, run

SESSION = "session-1"


class Echo:
    """One session."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._turn = 0
        self._interrupted = asyncio.Event()
        self._turns: asyncio.Queue[str] = asyncio.Queue()
        self._waiting = self._asking = self._reported = False
        self._held: list[Message] = []
        self._failure: str | None = None
        self._state = Path()

    async def serve(self) -> None:
        working: asyncio.Task[None] | None = None
        async for command in self._wire.commands():
            match command:
                case Begin():
                    self._begin(command)
                    self._turns.put_nowait(command.task)
                    working = asyncio.create_task(self._work())
                case Message():
                    self._receive(command)
                case Interrupt():
                    self._wire.deny_pending_approvals()
                    self._waiting = False
                    self._interrupted.set()
                case Stop():
                    break
        if working is not None:
            working.cancel()
        if self._turn:
            self._keep("the end")

    def _begin(self, begin: Begin) -> None:
        self._state = Path(begin.state_dir)
        if begin.resume is not None:
            resumed_text = f"resumed {begin.resume.session_id}: {Path(begin.resume.transcript).read_text()}"
            self._wire.publish_event("agent.message", content=resumed_text, content_length=len(resumed_text))

    def _receive(self, message: Message) -> None:
        if message.content == "no":
            self._wire.report_refused(message.message, "it does not want to")
            return
        if self._asking:
            self._wire.publish_event(
                "agent.message", turn=self._turn, content=f"holds {message.content}", content_length=1
            )
            self._held.append(message)
            return
        if self._waiting:
            self._wire.publish_event(
                "agent.message", turn=self._turn, content=f"heard {message.content}", content_length=1
            )
        else:
            self._turns.put_nowait(message.content)
        self._wire.report_taken(message.message)

    async def _work(self) -> None:
        self._wire.report_ready(session_id=SESSION, model="echo-1", version="0")
        while True:
            text = await self._turns.get()
            self._turn += 1
            self._wire.report_turn(self._turn, "running")
            self._wire.publish_event("agent.turn_started", turn=self._turn, prompt_preview=text[:50])
            self._interrupted.clear()
            for line in text.splitlines():
                await self._do(*line.partition(" ")[::2])
            self._wire.publish_event("agent.turn_completed", turn=self._turn, stop_reason="end_turn")
            self._keep(f"turn {self._turn}")
            if not self._reported and self._turns.empty():
                self._reported = True
                self._report_result()
            self._wire.report_turn(self._turn, "idle")

    def _report_result(self) -> None:
        failed = self._failure is not None
        self._wire.report_result(
            error_type="internal" if failed else None,
            error=self._failure or "",
            turns=self._turn,
            final_output=f"done {self._turn}",
            stop_reason="end_turn",
            session_id=SESSION,
        )

    async def _do(self, word: str, rest: str) -> None:
        match word:
            case "say":
                self._wire.publish_event("agent.message", turn=self._turn, content=rest, content_length=len(rest))
            case "print":
                print(rest, flush=True)
            case "usage":
                numbers = zip(("input_tokens", "output_tokens", "cost_micro_usd"), map(int, rest.split()), strict=True)
                self._wire.publish_event("agent.usage", turn=self._turn, **dict(numbers))
            case "use":
                await self._use(rest)
            case "raw":
                document = json.loads(rest)
                self._wire.publish_event(document["type"], **document["data"])
            case "wait":
                self._waiting = True
                await self._interrupted.wait()
                self._waiting = False
            case "fail":
                self._failure = rest
            case _:
                _end(word, rest)

    async def _use(self, tool: str) -> None:
        self._asking = True
        decision = await self._wire.request_approval(tool, {"command": "ls"}, "it would like to")
        self._asking, held, self._held = False, self._held, []
        word = "granted" if decision.granted else "denied"
        self._wire.publish_event(
            "agent.message", turn=self._turn, content=f"{tool} {word} {decision.reason}", content_length=1
        )
        for message in held:
            self._receive(message)

    def _keep(self, text: str) -> None:
        path = self._state / "session.jsonl"
        with path.open("a") as file:
            file.write(f"{text}\n")
        self._wire.report_transcript(path, SESSION)


def _end(word: str, rest: str) -> None:
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "exit":
        os._exit(int(rest))
    elif word == "spawn":
        subprocess.Popen(["/bin/sh", "-c", rest], start_new_session=True)
    elif word == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    elif word == "raise":
        raise RuntimeError("as it was commanded")


async def main(wire: Wire) -> None:
    await Echo(wire).serve()


if __name__ == "__main__":
    run(main)
