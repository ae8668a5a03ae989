"""A driver's harness with a real process behind it that executes its commands (`echo_driver`)."""

import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sandherd.contracts.harnesses import Approvals
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd_worker.harnesses.driver import DriverHarness
from sandherd_worker.harnesses.driver_task import DriverTask, HarnessContext
from sandherd_worker.harnesses.program import Program
from sandherd_worker.processes import Reaper
from sandherd_worker.redaction import Redactor

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "services" / "worker", ROOT / "tests" / "drivers" / "scripted")

Make = Callable[..., DriverHarness]


class Worker:
    """What a driver's harness asks of its worker."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str]] = []
        self.turns: list[tuple[int, bool]] = []

    async def keep(self, path: Path, session: str) -> None:
        if (what := (path.read_text(), session)) not in self.recorded[-1:]:
            self.recorded.append(what)

    async def turned(self, turn: int, working: bool) -> None:
        self.turns.append((turn, working))


def maker(home: Path, listener: Any, reaper: Reaper, worker: Worker) -> Make:
    """Makes harnesses, each with its task in the driver's words."""

    def make(
        *task: str,
        approvals: Approvals | None = None,
        kills: Callable[[], int | None] = lambda: 0,
        python: str = "",
        arguments: Sequence[str] = ("-P", "-m", "echo_driver"),
    ) -> DriverHarness:
        (state := home / "driver").mkdir(exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, PACKAGES))}
        argv = [python or sys.executable, *arguments]
        context = HarnessContext(
            sink=listener,
            redactor=Redactor(["hunter2-hunter2"]),
            reaper=reaper,
            memory_kills=kills,
            keep=worker.keep,
            turned=worker.turned,
        )
        wanted = DriverTask(
            text="\n".join(task),
            work_dir=home,
            state_dir=state,
            harness={"kind": "echo"},
            approvals=approvals or Approvals(),
        )
        return DriverHarness(Program(argv=argv, environment=environment, work_dir=home), wanted, context)

    return make


def message(content: str, kind: Any = "user_message", name: str = "msg-1") -> InboxMessage:
    """A message to the agent."""
    now = datetime.now(UTC)
    return InboxMessage(
        message=name,
        project="p1",
        sandbox="sbx-1",
        content=content,
        message_type=kind,
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


def published(listener: Any) -> list[str]:
    """What the agent has published."""
    return [event.content for event in listener.events if event.type == "agent.message"]
