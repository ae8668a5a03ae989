"""Records sessions: `python -m tests.recordings.record [NAME…]`; without names, those that have no recording yet.

With `--labels`, it only writes the texts and rules of the labels again from the scenarios.
"""

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
from tests.recordings.scenario import SCENARIOS, Scenario, described
from tests.recordings.scenarios import load
from tests.recordings.sessions import LABELS, SESSIONS, labels, plain_text

TOGETHER: Final = 3
"""Sessions that are recorded at a time."""
LARGE: Final = 48 * 1024
"""A larger recording is compressed."""
FIELDS: Final = (
    "harness", "author", "expect", "from_sequence", "from_step", "imitates", "may", "steps", "events", "sandbox", "note"
)  # fmt: skip
"""The fields of a label, in order."""
_MACHINE: Final = (str(Path(__file__).parents[2]), str(Path(sys.base_prefix)))


async def record(names: list[str]) -> int:
    """Record these sessions on one broker; returns the number of failures."""
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
    """Record one session and print the result; returns whether it is recorded."""
    began, name = time.monotonic(), box.scenario.name
    try:
        await record_one(box)
    except Exception as error:  # noqa: BLE001  # the others are recorded nevertheless
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
    """Perform a scenario, and write its recording and its label."""
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
    label = {**described(scenario), "steps": len(clock.steps), "events": len(events), "sandbox": events[0]["sandboxid"]}
    if scenario.rule is not None:
        at = clock.shifted(datetime.fromtimestamp(clock.faults[0], UTC))
        first = next(event for event in events if datetime.fromisoformat(event["time"]) >= at)
        label |= {"from_sequence": first["sequence"], "from_step": clock.steps.index(clock.faults[0]) + 1}
    update_labels({scenario.name: label})


def update_labels(changed: dict[str, dict[str, Any]]) -> None:
    """Add or replace labels."""
    with LABELS.open("r+") as file:
        flock(file, LOCK_EX)  # another recorder may run
        found = json.load(file)["sessions"]
        found |= {name: {field: label[field] for field in FIELDS if field in label} for name, label in changed.items()}
        file.seek(0)
        file.write(json.dumps({"sessions": dict(sorted(found.items()))}, indent=2, ensure_ascii=False) + "\n")
        file.truncate()


def describe_again() -> None:
    """Write the labels' texts and rules again from the scenarios, without recording."""
    update_labels({name: labels()[name] | described(SCENARIOS[name]()) for name in labels() if name in SCENARIOS})


def main() -> int:
    """Record the sessions that the arguments name."""
    load()
    if sys.argv[1:] == ["--labels"]:
        describe_again()
        return 0
    names = sys.argv[1:] or [name for name in SCENARIOS if plain_text(name) is None]
    unknown = sorted(set(names) - SCENARIOS.keys())
    if unknown:
        print(f"no scenario is named {', '.join(unknown)}", file=sys.stderr)
        return 2
    return 1 if asyncio.run(record(names)) else 0


if __name__ == "__main__":
    sys.exit(main())
