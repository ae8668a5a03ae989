"""The checks of `sandherd doctor`. Each looks at one thing and says what helps; judging is pure, looking is apart."""

import asyncio
import http.client
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sandherd.bus.file_systems import measure_home, shortages
from sandherd.bus.health import REMARK
from sandherd.bus.identity import Bearer
from sandherd.client.cli.auditing import audit_faults
from sandherd.client.cli.checks import Check, State
from sandherd.client.cli.host_uids import judge_host_uids
from sandherd.client.cli.process_exits import check_exits
from sandherd.client.cli.services import MOST_SKEW, Told, ask_all, judge
from sandherd.client.context import Context, holder
from sandherd.client.errors import STATUS_REMEDY, HerdError
from sandherd.client.herd import Herd
from sandherd.contracts.requests import Audit, RuntimeView

HTTP_SECONDS: Final = 2.0
SOON: Final = timedelta(hours=1)
MUCH_UNSTORED: Final = 10_000
ROOM_REMEDY: Final = "see that event-ingest and Postgres keep up; `sandherd audit` says what is not stored yet"
DISK_REMEDY: Final = "free space on that file system or enlarge it; the herd goes on by itself within 30 s"
LIMIT_REMEDY: Final = (
    "run the spawner as root where loop devices can be mounted, with SANDHERD_SANDBOX_DISK_MB above 0; "
    "or put its home on a file system of its own, so that sandboxes can fill nothing else"
)
BROKER_SINCE: Final = (2, 12)
"""The oldest version of nats-server that has what streams and leases need: per-message times to live and markers."""


async def examine(context: Context, now: datetime) -> list[Check]:
    """Look at everything that can be seen from here."""
    found = [credential(context, now)]
    heard: set[str] = set()
    found += [check async for check in _on_the_broker(context, now, heard)]
    # Who does not answer over the broker may still say by HTTP why.
    mute = sorted(context.services.keys() - heard)
    found += await asyncio.gather(*(_service(f"{name} by HTTP", context.services[name]) for name in mute))
    if not heard:
        found.append(await _clock(context))
    return found + disks(context.home) + check_exits(context.home) + unsaid(context.home)


def credential(context: Context, now: datetime) -> Check:
    """Who we are, and for how long."""
    if context.credentials is None:
        return Check(
            "credential",
            State.WORTH_A_LOOK,
            "none; a herd's broker lets nobody in without one",
            "start a stack with `sandherd up`, or set SANDHERD_CREDENTIALS",
        )
    try:
        return judge_holder(holder(context.credentials), context.credentials, now)
    except HerdError as error:
        return Check("credential", State.WRONG, error.problem.message, error.problem.remedy)


def judge_holder(who: Bearer, path: Path, now: datetime) -> Check:
    """Whether a credential is good, and stays good for a while."""
    name = f"{who.principal} of {who.project or 'all projects'}, {path}"
    remedy = "get a new .creds file from whoever runs the herd; on this machine `sandherd up` makes one"
    if who.expires_at is None:
        return Check("credential", State.RIGHT, f"{name}, does not expire")
    if who.expires_at <= now:
        return Check("credential", State.WRONG, f"{name}, expired at {who.expires_at:%Y-%m-%d %H:%M} UTC", remedy)
    state = State.WORTH_A_LOOK if who.expires_at - now < SOON else State.RIGHT
    found = f"{name}, until {who.expires_at:%Y-%m-%d %H:%M} UTC"
    return Check("credential", state, found, remedy if state is State.WORTH_A_LOOK else None)


def judge_version(version: tuple[int, int, int], url: str, milliseconds: float) -> Check:
    """Whether the broker is new enough."""
    found = f"nats-server {'.'.join(map(str, version))} at {url}, {milliseconds:.1f} ms away"
    if version[:2] < BROKER_SINCE:
        oldest = ".".join(map(str, BROKER_SINCE))
        return Check("broker", State.WRONG, found, f"use nats-server {oldest} or newer")
    return Check("broker", State.RIGHT, found)


def judge_service(name: str, address: str, body: str, *, ready: bool) -> Check:
    """Whether a service works, and whether something about it is worth a look."""
    if not ready:
        return Check(name, State.WRONG, f"{address} is not ready: {body}", STATUS_REMEDY)
    remark = body.partition(REMARK)[2].strip()
    if remark:
        return Check(name, State.WORTH_A_LOOK, f"{address} is ready, but {remark}", ROOM_REMEDY)
    return Check(name, State.RIGHT, f"{address} is ready")


def judge_skew(skew: timedelta) -> Check:
    """Whether our clock and a service's agree. HTTP tells whole seconds only."""
    found = f"differs from the services' by {abs(skew.total_seconds()):.0f} s"
    if abs(skew) <= timedelta(seconds=1):
        return Check("clock", State.RIGHT, "agrees with the services' to the second")
    if abs(skew) > MOST_SKEW:
        return Check("clock", State.WRONG, found, "set this machine's clock, as with `timedatectl set-ntp true`")
    return Check("clock", State.RIGHT, found)


def judge_audit(audit: Audit) -> list[Check]:
    """Whether the history keeps up, is whole, and took everything."""
    lag = Check("history lag", State.RIGHT, f"{audit.unstored} events not stored yet")
    if audit.unstored > MUCH_UNSTORED:
        lag = Check("history lag", State.WORTH_A_LOOK, lag.found, "run another event-ingest, or look at Postgres")
    gaps = Check("history", State.RIGHT, f"{audit.event_count} events of {audit.source_count} sources, none missing")
    faults = audit_faults(audit)
    if faults:
        gaps = Check("history", State.WRONG, "; ".join(faults), "see which with `sandherd audit`")
    letters = Check("dead letters", State.RIGHT, "none")
    if audit.dead:
        letters = Check(
            "dead letters", State.WORTH_A_LOOK, f"{audit.dead} in all projects", "read them with `sandherd dead list`"
        )
    return [lag, gaps, letters]


def judge_isolation(runtimes: Sequence[RuntimeView]) -> list[Check]:
    """Whether what runs sandboxes isolates them as well as it could; one line for each thing that is missing."""
    return [
        Check(f"runtime {one.runtime}", State.WORTH_A_LOOK, gap, "see the table of guarantees in docs/security.md")
        for one in runtimes
        for gap in one.gaps
    ]


def judge_disk_limits(runtimes: Sequence[RuntimeView]) -> list[Check]:
    """Whether a sandbox can fill the disk of its host; nothing where no runtime knows that."""
    unlimited = [one.runtime for one in runtimes if one.disk == "none"]
    if unlimited:
        found = f"not limited in runtime {', '.join(unlimited)}"
        return [Check("sandbox disk", State.WORTH_A_LOOK, found, LIMIT_REMEDY)]
    limited = [f"{one.disk} in runtime {one.runtime}" for one in runtimes if one.disk]
    return [Check("sandbox disk", State.RIGHT, f"limited by {', '.join(limited)}")] if limited else []


def disks(home: Path) -> list[Check]:
    """Whether the file systems of a local stack have room. Nothing where no stack has its home."""
    if not (home / "sandboxes").is_dir():
        return []
    try:
        short = shortages(measure_home(home))
    except OSError as error:
        return [Check("disk", State.UNKNOWN, f"{home}: {error.strerror}")]
    if not short:
        return [Check("disk", State.RIGHT, f"free space and inodes below {home}")]
    return [Check("disk", State.WRONG, found, DISK_REMEDY) for found in short]


def unsaid(home: Path) -> list[Check]:
    """Whether sandboxes of this machine were put aside with something unsaid. Nothing where no stack has its home."""
    if not (home / "sandboxes").is_dir():
        return []
    aside = home / "kept"
    try:
        count = len(list(aside.iterdir())) if aside.exists() else 0
    except OSError as error:
        return [Check("unsaid", State.UNKNOWN, f"{aside}: {error.strerror}")]
    if not count:
        return [Check("unsaid", State.RIGHT, "all that ended sandboxes had to say is said")]
    found = f"{count} ended sandbox{'es' if count > 1 else ''} with events that could not be said, in {aside}"
    remedy = "they are tried again every 10 minutes; the end of each one's run/*/log says why; removing one gives it up"
    return [Check("unsaid", State.WORTH_A_LOOK, found, remedy)]


async def _on_the_broker(context: Context, now: datetime, heard: set[str]) -> AsyncIterator[Check]:
    """What is found over the broker; `heard` are the services that said how they are."""
    try:
        async with Herd.connect(context, patience=2) as herd:
            client = herd.connection.bus.client
            milliseconds = await client.rtt() * 1000
            version = client.connected_server_version
            yield judge_version((version.major, version.minor, version.patch), context.nats_url, milliseconds)
            answers = await ask_all(herd.connection)
            heard |= {name for name, answer in answers.items() if isinstance(answer, Told)}
            for check in [*judge(answers, now), await _spawner(herd), *await _runtimes(herd), *await _history(herd)]:
                yield check
    except HerdError as error:
        yield Check("broker", State.WRONG, error.problem.message, error.problem.remedy)


async def _spawner(herd: Herd) -> Check:
    try:
        found = await herd.tasks(limit=1)
    except HerdError as error:
        return Check("live state", State.WRONG, error.problem.message, error.problem.remedy)
    if found.origin == "live":
        return Check("live state", State.RIGHT, "the spawner answers")
    return Check("live state", State.WRONG, "the spawner is not there", STATUS_REMEDY)


async def _runtimes(herd: Herd) -> list[Check]:
    try:
        runtimes = (await herd.catalogue()).runtimes
        return judge_host_uids(runtimes) + judge_isolation(runtimes) + judge_disk_limits(runtimes)
    except HerdError:
        return []  # "live state" says why the spawner does not answer


async def _history(herd: Herd) -> list[Check]:
    try:
        return judge_audit(await herd.audit())
    except HerdError as error:
        return [Check("history", State.WRONG, error.problem.message, error.problem.remedy)]


async def _service(name: str, address: str) -> Check:
    """What a service says of itself: its connection, its consumers, what it depends on."""
    try:
        status, body, _ = await asyncio.to_thread(_get, address)
    except (OSError, http.client.HTTPException) as error:
        return Check(name, State.WRONG, f"{address} does not answer ({type(error).__name__})", STATUS_REMEDY)
    return judge_service(name, address, body, ready=status == http.client.OK)


async def _clock(context: Context) -> Check:
    for address in context.services.values():
        try:
            _, _, date = await asyncio.to_thread(_get, address)
            if date is not None:
                return judge_skew(datetime.now(UTC) - date)
        except (OSError, http.client.HTTPException, ValueError):
            continue
    return Check("clock", State.UNKNOWN, "no service's HTTP side is known here, so there is nothing to compare with")


def _get(address: str) -> tuple[int, str, datetime | None]:
    """`/readyz`: its status, its text in one line, and the moment at which the service answered."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=HTTP_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        date = answer.getheader("Date")
        text = " ".join(answer.read(4096).decode(errors="replace").split())
        return answer.status, text, parsedate_to_datetime(date) if date else None
    finally:
        connection.close()
