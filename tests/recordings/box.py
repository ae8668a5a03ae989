"""One recorded session: a real broker, a real worker in its own namespaces, and the actions of a user."""

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psutil

from sandherd.bus.connection import Bus
from sandherd.contracts.inbox_messages import ApprovalAnswer, InboxMessage
from sandherd.contracts.names import new_name
from tests.drivers.toolchains import TOOLCHAINS, interpreter
from tests.integration.worker.conftest import PROJECT, Sandbox
from tests.recordings.clock import Clock, Event, retime
from tests.recordings.scenario import Edit, Scenario, Send, Step, Write
from tests.recordings.stages import Director, served

PROGRAMS: Final = Path(__file__).parent / "programs"
HOME: Final = "/home/agent"
_NAMESPACES: Final = ("unshare", "--mount", "--uts", "--kill-child", "--fork")
_ENTER: Final = """
mount --make-rprivate / && mount -t tmpfs none /home && mkdir /home/agent && mount --bind "$0" /home/agent &&
hostname sandbox && cd /home/agent/work && exec "$@"
"""
"""Enters the sandbox's namespaces: its files are at a sandbox's paths, and no name of this machine is visible."""
_HEAD: Final = "#!/usr/bin/python3 -S\nimport sys\nfrom slow_tools import *\n"
_PATIENCE: Final = 900.0
_EDIT_SECONDS: Final = 1.5
"""How long a step waits for the events of the edits before it."""
_MESSAGE_SECONDS: Final = 1.0
"""How long a response waits for a message that is sent before it, so that the agent has the message first."""


@dataclass
class Box:
    """A sandbox in which a scenario is performed."""

    sandbox: Sandbox
    relay: Bus
    scenario: Scenario

    def __post_init__(self) -> None:
        self.random = random.Random(self.scenario.name)
        self.home = self.sandbox.work.parent
        self.clock_file = self.home / ".clock"
        self.sending: list[asyncio.Future[None]] = []
        self.edits = self.waited_for = self.published = self.published_before = 0

    # --- preparing it

    def prepare(self) -> None:
        """Create its work tree, its programs, and its task."""
        self.clock_file.touch()
        (self.home / "tmp").mkdir()
        shutil.copytree(PROGRAMS, self.home / "bin", ignore=shutil.ignore_patterns("__pycache__"))
        for name, content in self.scenario.tree.items():
            _write(self.sandbox.work / name, content)
        for name, body in self.scenario.programs.items():
            _write(self.home / "bin" / name, _HEAD + body).chmod(0o755)
        if self.scenario.setup:
            command = ["/bin/sh", "-ec", self.scenario.setup]
            self._inside(command)

    def _inside(self, command: list[str]) -> None:
        entering = [*_NAMESPACES, "sh", "-c", _ENTER, str(self.home), *command]
        environment = {**self.environment(), "GIT_CONFIG_GLOBAL": "/dev/null"}
        subprocess.run(entering, env=environment, check=True, capture_output=True)

    def environment(self) -> dict[str, str]:
        """The variables of everything in the sandbox."""
        author = {"GIT_AUTHOR_NAME": "Agent", "GIT_AUTHOR_EMAIL": "agent@example.com"}
        committer = {name.replace("AUTHOR", "COMMITTER"): value for name, value in author.items()}
        return {
            "PATH": f"{HOME}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": HOME,
            "TMPDIR": f"{HOME}/tmp",
            "LANG": "C.UTF-8",
            "RECORDED_PYTHON": sys.executable,
            **author,
            **committer,
        }

    def task(self, url: str) -> dict[str, Any]:
        """The task's specification."""
        scenario = self.scenario
        harness = {"kind": scenario.harness, **self._program(), **scenario.options}
        if scenario.refusals is not None:
            harness.setdefault("approvals", {"otherwise": "ask"})
        kind = {"kind": scenario.kind} if scenario.kind else {}
        linger = {"linger_seconds": 3600} if scenario.followups else {}
        env = {**self.environment(), **_MODELS[scenario.harness](url), **scenario.env}
        return {"text": scenario.task, "harness": harness, "env": env, **kind, **linger, **scenario.spec}

    def _program(self) -> dict[str, Any]:
        if self.scenario.harness not in {"acp", "command"} or "script" in self.scenario.options:
            return {}
        script = [asdict(one) | {"kinds": [type(act).__name__ for act in one.acts]} for one in self.scenario.steps]
        (self.home / ".script.json").write_text(json.dumps(script))
        python = "/usr/bin/python3"
        return {"argv": [python, f"{HOME}/bin/agent.py", self.scenario.harness]}

    # --- playing

    async def reached(self, step: Step) -> None:
        """Handle that the model has reached this step: send its messages, and advance the clock."""
        for message in step.sent:
            # The receipt may come only after the response: the worker waits until the agent has the message.
            sending = asyncio.ensure_future(self.send(message))
            self.sending.append(sending)
            await asyncio.wait([sending], timeout=_MESSAGE_SECONDS)
        await self._edits_published()
        self.edits += sum(isinstance(act, Write | Edit) for act in step.acts)
        seconds = step.clock if step.clock is not None else round(self.random.uniform(2.5, 11), 1)
        self.advance(seconds, "fault" if step.at_fault else "step")

    async def _edits_published(self) -> None:
        """Wait until the edits so far are published, but not long, as some may have failed.

        A worker publishes changes after 0.3 s and more: scripted steps would be so fast that edits are joined.
        """
        before, self.waited_for = self.waited_for, self.edits
        if self.edits == before:
            return
        until = time.monotonic() + _EDIT_SECONDS
        while self.published < self.published_before + self.edits - before and time.monotonic() < until:
            await asyncio.sleep(0.05)
        self.published_before = self.published

    async def _count_edits(self) -> None:
        """Count the published edits, also for an agent in the sandbox."""
        subject = f"sandherd.v1.event.{PROJECT}.{self.sandbox.name}.agent.file_edited"
        while True:
            if (count := len(await self.sandbox.stored(subject))) != self.published:
                self.published = count
                (self.home / ".edited").write_text(str(count))
            await asyncio.sleep(0.1)

    def advance(self, seconds: float, word: str = "") -> None:
        """Advance the recording's clock; the word states that a step was reached, and whether it is at fault."""
        with self.clock_file.open("a") as file:
            file.write(f"{time.time():.6f} {seconds} {word}\n")

    async def send(self, message: Send) -> None:
        """Deliver a message to the worker as message-relay does."""
        await self._deliver(message.text, message.type, message.sender)

    async def _deliver(self, content: str, kind: Any, sender: str) -> None:
        now = datetime.now(UTC)
        letter = InboxMessage(
            message=new_name("msg"), project=PROJECT, sandbox=self.sandbox.name, content=content, message_type=kind,
            sender_id=sender, sent_at=now, expires_at=now + timedelta(hours=1),
        )  # fmt: skip
        await self.sandbox.deliver(self.relay, letter)

    async def play(self, url: str) -> None:
        """Run the session to its end."""
        (self.sandbox.state / "task.json").write_text(json.dumps(self.task(url)))
        self.sandbox.within = [*_NAMESPACES, "sh", "-c", _ENTER, str(self.home)]
        places = {"SANDHERD_WORK_DIR": f"{HOME}/work", "SANDHERD_STATE_DIR": f"{HOME}/state"}
        about = {"SANDHERD_TASK_ID": new_name("task"), "TRACEPARENT": "", "SANDHERD_TOOLCHAINS": str(TOOLCHAINS)}
        self.sandbox.environment |= {**self.environment(), **places, **about}
        await self.sandbox.start()
        async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as group:
            beside = [group.create_task(self._answer_approvals()), group.create_task(self._count_edits())]
            await self._end()
            for one in beside:
                one.cancel()

    async def _end(self) -> None:
        for count, (message, seconds) in enumerate(self.scenario.followups, self.scenario.turns):
            await self._turns(count)
            self.advance(seconds)
            await self.send(message)
        if self.scenario.followups:
            await self._turns(len(self.scenario.followups) + self.scenario.turns)
            assert self.sandbox.process is not None
            for child in psutil.Process(self.sandbox.process.pid).children():
                child.send_signal(signal.SIGTERM)
        assert self.sandbox.process is not None
        await self.sandbox.process.wait()

    async def _turns(self, count: int) -> None:
        while len(await self.sandbox.events("turn_completed")) < count:
            await asyncio.sleep(0.1)

    async def _answer_approvals(self) -> None:
        answered = 0
        while self.scenario.refusals is not None:
            for request_data in (await self.sandbox.events("approval_requested"))[answered:]:
                answered += 1
                await self._decide(request_data.data)
            await asyncio.sleep(0.05)

    async def _decide(self, request_data: Any) -> None:
        given = json.dumps(request_data.input)
        refusal = next((one for one in self.scenario.refusals or () if one.contains in given), None)
        self.advance(refusal.seconds if refusal else round(self.random.uniform(5, 40), 1))
        reason = refusal.reason if refusal else None
        granted = refusal is None or refusal.granted
        answer = ApprovalAnswer(approval_id=request_data.approval_id, granted=granted, reason=reason)
        await self._deliver(answer.model_dump_json(), "approval", "usr-anna")

    async def recorded(self) -> list[Event]:
        """The events of the session, as a recording has them."""
        stored = await self.sandbox.stored(f"sandherd.v1.event.{PROJECT}.{self.sandbox.name}.agent.*")
        return retime([json.loads(document) for _, document, _ in stored], self.clock())

    def clock(self) -> Clock:
        """The pauses of this session."""
        return Clock.read(self.clock_file.read_text())

    async def close(self) -> None:
        """End all processes in it."""
        for sending in self.sending:
            sending.cancel()
        process = self.sandbox.process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        for one in self.sandbox.processes():
            with suppress(psutil.NoSuchProcess):
                one.kill()


def _write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def _of_claude(url: str) -> dict[str, str]:
    key = {"ANTHROPIC_API_KEY": "sk-ant-scripted", "CLAUDE_CODE_MAX_RETRIES": "0"}
    return {"ANTHROPIC_BASE_URL": url, "DISABLE_TELEMETRY": "1", **key}


def _of_openhands(url: str) -> dict[str, str]:
    prices = {"LLM_INPUT_COST_PER_TOKEN": "0.000002", "LLM_OUTPUT_COST_PER_TOKEN": "0.00001"}
    request_data = {"LLM_MODEL": "openai/scripted", "LLM_API_KEY": "sk-scripted", "LLM_NUM_RETRIES": "0"}
    return {"LLM_BASE_URL": url, **request_data, **prices}


def _of_steps(_url: str) -> dict[str, str]:
    return {"RECORDED_STEPS": f"{HOME}/.script.json"}


_MODELS: Final[dict[str, Callable[[str], dict[str, str]]]] = {
    "claude": _of_claude,
    "openhands": _of_openhands,
    "acp": _of_steps,
    "command": _of_steps,
}


@asynccontextmanager
async def stage_of(box: Box) -> AsyncIterator[str]:
    """The URL of the model's server; empty if the harness has no model."""
    kind = box.scenario.harness
    if kind in {"claude", "openhands", "acp"}:
        await asyncio.to_thread(interpreter, kind)
    director = Director(box.scenario, box.reached)
    async with served(kind, director) if kind in {"claude", "openhands"} else nullcontext("") as url:
        yield url
