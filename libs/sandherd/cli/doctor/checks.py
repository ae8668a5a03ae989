"""The checks of `sandherd doctor`, each with a remedy. The `judge_…` functions are pure; others collect the facts."""

import asyncio
import http.client
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sandherd.bus.health import REMARK
from sandherd.bus.identity import Bearer
from sandherd.bus.storage_causes import measure_home, shortages
from sandherd.cli.doctor.check import Check, CheckState
from sandherd.cli.doctor.infrastructure import check_agent_sdks, check_exits, check_host_uids
from sandherd.cli.doctor.services import MAX_SKEW, ServiceReport, request_reports, service_checks
from sandherd.cli.render.history import audit_faults
from sandherd.client.context import Context, holder
from sandherd.client.errors import STATUS_REMEDY, HerdError
from sandherd.client.herd import Herd
from sandherd.contracts.requests import Audit, RuntimeView
from sandherd.counted import counted

HTTP_SECONDS: Final = 2.0
SOON: Final = timedelta(hours=1)
MUCH_UNSTORED: Final = 10_000
STREAM_REMEDY: Final = "check that event-ingest and Postgres keep up; `sandherd audit` shows what is not stored yet"
DISK_REMEDY: Final = "free space on that file system or enlarge it; the herd continues by itself within 30 s"
LIMIT_REMEDY: Final = (
    "run the spawner as root where loop devices can be mounted, without SANDHERD_SANDBOX_DISK_MB=0; "
    "or put its home on a separate file system, so that sandboxes cannot fill any other"
)
BROKER_SINCE: Final = (2, 12)
"""The oldest nats-server with what streams and leases need: per-message times to live."""


async def examine(context: Context, now: datetime) -> list[Check]:
    """Run every check that is possible from this machine."""
    found = [credential(context, now), *check_agent_sdks(context)]
    replied: set[str] = set()
    found += [check async for check in _on_the_broker(context, now, replied)]
    # A service that does not reply over the broker may still report the reason over HTTP.
    silent = sorted(context.services.keys() - replied)
    found += await asyncio.gather(*(_service(f"{name} by HTTP", context.services[name]) for name in silent))
    if not replied:
        found.append(await _clock(context))
    return found + disks(context.home) + check_exits(context.home) + check_unpublished(context.home)


def credential(context: Context, now: datetime) -> Check:
    """Checks the credential: its holder and its expiry."""
    if context.credentials is None:
        return Check(
            "credential",
            CheckState.WARNING,
            "No credentials found; the broker requires them",
            "start a stack with `sandherd up`, or set SANDHERD_CREDENTIALS",
        )
    try:
        return check_credential(holder(context.credentials), context.credentials, now)
    except HerdError as error:
        return Check("credential", CheckState.WRONG, error.problem.message, error.problem.remedy)


def check_credential(who: Bearer, path: Path, now: datetime) -> Check:
    """Whether a credential is valid, and does not expire within an hour."""
    name = f"{who.principal} of {who.project or 'all projects'}, {path}"
    remedy = "get a new .creds file from the operator of the herd; `sandherd up` creates one for a local stack"
    if who.expires_at is None:
        return Check("credential", CheckState.RIGHT, f"{name}, does not expire")
    if who.expires_at <= now:
        return Check("credential", CheckState.WRONG, f"{name}, expired at {who.expires_at:%Y-%m-%d %H:%M} UTC", remedy)
    state = CheckState.WARNING if who.expires_at - now < SOON else CheckState.RIGHT
    found = f"{name}, until {who.expires_at:%Y-%m-%d %H:%M} UTC"
    return Check("credential", state, found, remedy if state is CheckState.WARNING else None)


def check_version(version: tuple[int, int, int], url: str, milliseconds: float) -> Check:
    """Whether the broker is new enough."""
    found = f"nats-server {'.'.join(map(str, version))} at {url}, round-trip time {milliseconds:.1f} ms"
    if version[:2] < BROKER_SINCE:
        oldest = ".".join(map(str, BROKER_SINCE))
        return Check("broker", CheckState.WRONG, found, f"use nats-server {oldest} or newer")
    return Check("broker", CheckState.RIGHT, found)


def check_service(name: str, address: str, body: str, *, ready: bool) -> Check:
    """Whether a service is ready, and whether it reports a warning."""
    if not ready:
        return Check(name, CheckState.WRONG, f"{address} is not ready: {body}", STATUS_REMEDY)
    remark = body.partition(REMARK)[2].strip()
    if remark:
        return Check(name, CheckState.WARNING, f"{address} is ready, but {remark}", STREAM_REMEDY)
    return Check(name, CheckState.RIGHT, f"{address} is ready")


def check_skew(skew: timedelta) -> Check:
    """Whether our clock and a service's agree. HTTP dates have a resolution of one second."""
    found = f"differs from the services' by {abs(skew.total_seconds()):.0f} s"
    if abs(skew) <= timedelta(seconds=1):
        return Check("clock", CheckState.RIGHT, "agrees with the services' to the second")
    if abs(skew) > MAX_SKEW:
        return Check("clock", CheckState.WRONG, found, "set this machine's clock, as with `timedatectl set-ntp true`")
    return Check("clock", CheckState.RIGHT, found)


def check_audit(audit: Audit) -> list[Check]:
    """Whether the history keeps up, has no gaps, and has no dead letters."""
    lag = Check("history lag", CheckState.RIGHT, f"{counted(audit.unstored, 'event')} not stored yet")
    if audit.unstored > MUCH_UNSTORED:
        lag = Check("history lag", CheckState.WARNING, lag.found, "run another event-ingest, or check Postgres")
    stored = f"{counted(audit.event_count, 'event')} of {counted(audit.source_count, 'source')}, none missing"
    gaps = Check("history", CheckState.RIGHT, stored)
    faults = audit_faults(audit)
    if faults:
        gaps = Check("history", CheckState.WRONG, "; ".join(faults), "see which with `sandherd audit`")
    letters = Check("dead letters", CheckState.RIGHT, "none")
    if audit.dead:
        found = f"{audit.dead} in all projects"
        letters = Check("dead letters", CheckState.WARNING, found, "read them with `sandherd dead list`")
    return [lag, gaps, letters]


def check_isolation(runtimes: Sequence[RuntimeView]) -> list[Check]:
    """Whether the runtimes isolate sandboxes as well as they could; one check for each missing guarantee."""
    return [
        Check(f"runtime {one.runtime}", CheckState.WARNING, gap, "see the table of guarantees in docs/security.md")
        for one in runtimes
        for gap in one.gaps
    ]


def check_disk_limits(runtimes: Sequence[RuntimeView]) -> list[Check]:
    """Whether a sandbox can fill the disk of its host; empty if no runtime reports it."""
    unlimited = [one.runtime for one in runtimes if one.disk == "none"]
    if unlimited:
        found = f"not limited in runtime {', '.join(unlimited)}"
        return [Check("sandbox disk", CheckState.WARNING, found, LIMIT_REMEDY)]
    limited = [f"{one.disk} in runtime {one.runtime}" for one in runtimes if one.disk]
    return [Check("sandbox disk", CheckState.RIGHT, f"limited by {', '.join(limited)}")] if limited else []


def disks(home: Path) -> list[Check]:
    """Whether the file systems of a local stack have free space. Empty if no stack has its home here."""
    if not (home / "sandboxes").is_dir():
        return []
    try:
        short = shortages(measure_home(home))
    except OSError as error:
        return [Check("disk", CheckState.UNKNOWN, f"{home}: {error.strerror}")]
    if not short:
        return [Check("disk", CheckState.RIGHT, f"free space and inodes below {home}")]
    return [Check("disk", CheckState.WRONG, found, DISK_REMEDY) for found in short]


def check_unpublished(home: Path) -> list[Check]:
    """Whether ended sandboxes in the folder `kept` have unpublished events. Empty if no stack has its home here."""
    if not (home / "sandboxes").is_dir():
        return []
    quarantine = home / "kept"
    try:
        count = len(list(quarantine.iterdir())) if quarantine.exists() else 0
    except OSError as error:
        return [Check("unsaid", CheckState.UNKNOWN, f"{quarantine}: {error.strerror}")]
    if not count:
        return [Check("unsaid", CheckState.RIGHT, "no unpublished events")]
    found = f"{count} ended sandbox{'es' if count > 1 else ''} with unpublished events, in {quarantine}"
    remedy = "retried every 10 minutes; see the end of each one's run/*/log; deleting one's folder discards its events"
    return [Check("unsaid", CheckState.WARNING, found, remedy)]


async def _on_the_broker(context: Context, now: datetime, replied: set[str]) -> AsyncIterator[Check]:
    """The checks over the broker; adds the services that replied to `heard`."""
    try:
        async with Herd.connect(context, patience=2) as herd:
            client = herd.connection.bus.client
            milliseconds = await client.rtt() * 1000
            version = client.connected_server_version
            yield check_version((version.major, version.minor, version.patch), context.nats_url, milliseconds)
            answers = await request_reports(herd.connection)
            replied |= {name for name, answer in answers.items() if isinstance(answer, ServiceReport)}
            for check in [
                *service_checks(answers, now),
                await _spawner(herd),
                *await _runtimes(herd),
                *await _history(herd),
            ]:
                yield check
    except HerdError as error:
        yield Check("broker", CheckState.WRONG, error.problem.message, error.problem.remedy)


async def _spawner(herd: Herd) -> Check:
    try:
        found = await herd.tasks(limit=1)
    except HerdError as error:
        return Check("live state", CheckState.WRONG, error.problem.message, error.problem.remedy)
    if found.origin == "live":
        return Check("live state", CheckState.RIGHT, "the spawner replies")
    return Check("live state", CheckState.WRONG, "the spawner is unavailable", STATUS_REMEDY)


async def _runtimes(herd: Herd) -> list[Check]:
    try:
        runtimes = (await herd.catalogue()).runtimes
        return check_host_uids(runtimes) + check_isolation(runtimes) + check_disk_limits(runtimes)
    except HerdError:
        return []  # "live state" reports why the spawner does not reply


async def _history(herd: Herd) -> list[Check]:
    try:
        return check_audit(await herd.audit())
    except HerdError as error:
        return [Check("history", CheckState.WRONG, error.problem.message, error.problem.remedy)]


async def _service(name: str, address: str) -> Check:
    """What a service reports about itself: its connection, its consumers, its dependencies."""
    try:
        status, body, _ = await asyncio.to_thread(_get, address)
    except (OSError, http.client.HTTPException) as error:
        return Check(name, CheckState.WRONG, f"{address} does not respond ({type(error).__name__})", STATUS_REMEDY)
    return check_service(name, address, body, ready=status == http.client.OK)


async def _clock(context: Context) -> Check:
    for address in context.services.values():
        try:
            _, _, date = await asyncio.to_thread(_get, address)
            if date is not None:
                return check_skew(datetime.now(UTC) - date)
        except (OSError, http.client.HTTPException, ValueError):
            continue
    return Check("clock", CheckState.UNKNOWN, "no HTTP address of a service is known to compare with")


def _get(address: str) -> tuple[int, str, datetime | None]:
    """`GET /readyz`: its status, its text in one line, and the time of the response by the service's clock."""
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
