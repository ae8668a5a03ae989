"""Records sessions: `python -m tests.recordings.record [NAME…]`; without names, those that have no recording yet."""

import asyncio
import gzip
import json
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, Final

from sandherd.contracts.names import new_name
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.worker.conftest import Sandbox, _reader
from tests.integration.worker.desk import Desk
from tests.recordings.box import Box, stage_of
from tests.recordings.clock import Clock, Event, written
from tests.recordings.scenario import SCENARIOS, Scenario
from tests.recordings.scenarios import load
from tests.recordings.sessions import LABELS, SESSIONS, plain_text

TOGETHER: Final = 3
"""Sessions that are recorded at a time."""
LARGE: Final = 48 * 1024
"""A larger recording is compressed."""
_MACHINE: Final = (str(Path(__file__).parents[2]), str(Path(sys.base_prefix)))


async def record(names: list[str]) -> int:
    """Record these sessions on one broker; the number of those that failed."""
    home = Path(tempfile.mkdtemp(prefix="recording-"))
    free = asyncio.Semaphore(TOGETHER)
    try:
        async with Broker(home / "herd") as broker, AsyncExitStack() as stack:
            reader = await stack.enter_async_context(_reader(broker, home / "reader.creds"))
            desk = Desk(broker, await stack.enter_async_context(broker.bus(Principal.SPAWNER)))
            await desk.open()
            relay = await stack.enter_async_context(broker.bus(Principal.MESSAGE_RELAY))

            async def one(name: str) -> bool:
                async with free:
                    sandbox = Sandbox(broker, desk, reader, home / name, new_name("sbx"))
                    return await attempt(Box(sandbox, relay, SCENARIOS[name]()))

            return sum(not done for done in await asyncio.gather(*map(one, names)))
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def attempt(box: Box) -> bool:
    """Record one session and print how that went; whether it is recorded."""
    began, name = time.monotonic(), box.scenario.name
    try:
        await record_one(box)
    except Exception as error:  # noqa: BLE001  # the others are recorded all the same
        log = box.sandbox.log.read_text()[-1500:] if box.sandbox.log.exists() else ""
        causes = getattr(error, "exceptions", error)
        print(f"FAILED    {name}: {type(error).__name__}: {causes}\n{log}", flush=True)
        return False
    finally:
        await box.close()
        shutil.rmtree(box.home, ignore_errors=True)
    print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
    return True


async def record_one(box: Box) -> None:
    """Play a scenario, and write its recording and its label."""
    box.prepare()
    async with stage_of(box) as url:
        await box.play(url)
    events = await box.recorded()
    check_end(box.scenario, events)
    write(box.scenario.name, events)
    write_label(box.scenario, events, box.clock())


def check_end(scenario: Scenario, events: list[Event]) -> None:
    """Raise `ValueError` if a session did not end as its scenario states."""
    ends = [event["type"] for event in events]
    if scenario.ends not in ends:
        failure = next((event["data"] for event in events if event["type"] == "agent.failed"), "no end")
        raise ValueError(f"it has no {scenario.ends}: {str(failure)[:600]}")


def write(name: str, events: list[Event]) -> None:
    """Write a recording, compressed if it is large, in place of an earlier one."""
    document = written(events)
    for path in _MACHINE:
        document = document.replace(path.encode(), b"/opt/agent")
    plain, packed = SESSIONS / f"{name}.jsonl", SESSIONS / f"{name}.jsonl.gz"
    plain.unlink(missing_ok=True)
    packed.unlink(missing_ok=True)
    if len(document) <= LARGE:
        plain.write_bytes(document)
    else:
        packed.write_bytes(gzip.compress(document, 9, mtime=0))


def write_label(scenario: Scenario, events: list[Event], clock: Clock) -> None:
    """Add or replace the label of a session."""
    label: dict[str, Any] = {"harness": scenario.harness, "author": "blind", "steps": len(clock.steps)}
    if scenario.rule is not None:
        at = clock.shifted(datetime.fromtimestamp(clock.faults[0], UTC))
        first = next(event for event in events if datetime.fromisoformat(event["time"]) >= at)
        label |= {"expect": [scenario.rule], "from_sequence": first["sequence"]}
        label |= {"from_step": clock.steps.index(clock.faults[0]) + 1}
    else:
        label["expect"] = []
    label |= {"imitates": scenario.imitates} if scenario.imitates else {}
    label |= {
        "may": sorted(scenario.may),
        "note": scenario.note,
        "sandbox": events[0]["sandboxid"],
        "events": len(events),
    }
    with LABELS.open("r+") as file:
        flock(file, LOCK_EX)  # another recorder may run
        sessions = {**json.load(file)["sessions"], scenario.name: label}
        file.seek(0)
        file.write(json.dumps({"sessions": dict(sorted(sessions.items()))}, indent=2, ensure_ascii=False) + "\n")
        file.truncate()


def main() -> int:
    """Record what the arguments name."""
    load()
    names = sys.argv[1:] or [name for name in SCENARIOS if plain_text(name) is None]
    unknown = sorted(set(names) - SCENARIOS.keys())
    if unknown:
        print(f"no scenario is named {', '.join(unknown)}", file=sys.stderr)
        return 2
    return 1 if asyncio.run(record(names)) else 0


if __name__ == "__main__":
    sys.exit(main())
