"""Runs the checks of `sandherd doctor`: checks of the herd, which are in `client/doctor`, and of this machine.

`check_credential`, `check_service` and `check_skew` are pure. The other functions collect the facts.
"""

import asyncio
import http.client
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sandherd.bus.health import WARNING_PREFIX
from sandherd.bus.identity import Bearer
from sandherd.bus.storage_causes import measure_home, shortages
from sandherd.cli.doctor.infrastructure import check_agent_sdks
from sandherd.cli.doctor.local_stack import check_exits, check_identity, check_processes, is_local_stack
from sandherd.cli.doctor.remedies import with_commands
from sandherd.client.context import Context, holder
from sandherd.client.doctor.check import Check, CheckState
from sandherd.client.doctor.herd import check_broker, check_herd
from sandherd.client.doctor.services import MAX_SKEW, STREAM_REMEDY, ServiceReport, request_reports
from sandherd.client.errors import STATUS_REMEDY, HerdError
from sandherd.client.herd import Herd

_HTTP_TIMEOUT_SECONDS: Final = 2.0
_EXPIRY_WARNING: Final = timedelta(hours=1)
"""A credential that expires earlier than this is a warning."""
DISK_REMEDY: Final = "free space on that file system or enlarge it; the herd continues by itself within 30 s"


async def examine(context: Context, now: datetime) -> list[Check]:
    """Run every check that is possible from this machine."""
    checks = [check_current_credential(context, now), *check_agent_sdks(context)]
    replied: set[str] = set()
    checks += [check async for check in _check_over_broker(context, now, replied)]
    # A service that does not reply over the broker may still report the reason over HTTP.
    silent = sorted(context.services.keys() - replied)
    checks += await asyncio.gather(
        *(_check_service_over_http(f"{name} by HTTP", context.services[name]) for name in silent)
    )
    if not replied:
        checks.append(await _check_clock(context))
    checks += check_disks(context.home) + _check_stack(context) + check_unpublished(context.home)
    local = is_local_stack(context)
    return [
        replace(check, remedy=with_commands(check.remedy, local=local)) if check.remedy else check for check in checks
    ]


def _check_stack(context: Context) -> list[Check]:
    """The failed checks of the local stack: of its keys, and of processes that do not run or have lacked a resource."""
    checks = [*check_identity(context.home), *(check_processes(context.home) if is_local_stack(context) else [])]
    checked_names = {check.name for check in checks}
    return checks + [check for check in check_exits(context.home) if check.name not in checked_names]


def check_current_credential(context: Context, now: datetime) -> Check:
    """Whether the credential of this context can be read, is valid, and does not expire within an hour."""
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


def check_credential(bearer: Bearer, path: Path, now: datetime) -> Check:
    """Whether a credential is valid, and does not expire within an hour."""
    name = f"{bearer.principal} of {bearer.project or 'all projects'}, {path}"
    remedy = "get a new .creds file from the operator of the herd; `sandherd up` creates one for a local stack"
    if bearer.expires_at is None:
        return Check("credential", CheckState.RIGHT, f"{name}, does not expire")
    if bearer.expires_at <= now:
        return Check(
            "credential", CheckState.WRONG, f"{name}, expired at {bearer.expires_at:%Y-%m-%d %H:%M} UTC", remedy
        )
    state = CheckState.WARNING if bearer.expires_at - now < _EXPIRY_WARNING else CheckState.RIGHT
    text = f"{name}, until {bearer.expires_at:%Y-%m-%d %H:%M} UTC"
    return Check("credential", state, text, remedy if state is CheckState.WARNING else None)


def check_service(name: str, address: str, body: str, *, ready: bool) -> Check:
    """Whether a service is ready, and whether it reports a warning."""
    if not ready:
        return Check(name, CheckState.WRONG, f"{address} is not ready: {body}", STATUS_REMEDY)
    warning = body.partition(WARNING_PREFIX)[2].strip()
    if warning:
        return Check(name, CheckState.WARNING, f"{address} is ready, but {warning}", STREAM_REMEDY)
    return Check(name, CheckState.RIGHT, f"{address} is ready")


def check_skew(skew: timedelta) -> Check:
    """Whether the clocks of this machine and of a service agree. HTTP dates have a resolution of one second."""
    text = f"differs from the clock of the services by {abs(skew.total_seconds()):.0f} s"
    if abs(skew) <= timedelta(seconds=1):
        return Check("clock", CheckState.RIGHT, "agrees with the clock of the services to the second")
    if abs(skew) > MAX_SKEW:
        return Check("clock", CheckState.WRONG, text, "set the clock of this machine")
    return Check("clock", CheckState.RIGHT, text)


def check_disks(home: Path) -> list[Check]:
    """Checks of the free space on the file systems of a local stack. Empty if no stack has its home here."""
    if not (home / "sandboxes").is_dir():
        return []
    try:
        problems = shortages(measure_home(home))
    except OSError as error:
        return [Check("disk", CheckState.UNKNOWN, f"{home}: {error.strerror}")]
    if not problems:
        return [Check("disk", CheckState.RIGHT, f"free space and inodes below {home}")]
    return [Check("disk", CheckState.WRONG, problem, DISK_REMEDY) for problem in problems]


def check_unpublished(home: Path) -> list[Check]:
    """Checks whether ended sandboxes have unpublished events, in the folder `kept`. Empty without a local stack."""
    if not (home / "sandboxes").is_dir():
        return []
    quarantine = home / "kept"
    try:
        count = len(list(quarantine.iterdir())) if quarantine.exists() else 0
    except OSError as error:
        return [Check("unsaid", CheckState.UNKNOWN, f"{quarantine}: {error.strerror}")]
    if not count:
        return [Check("unsaid", CheckState.RIGHT, "no unpublished events")]
    text = f"{count} ended sandbox{'es' if count > 1 else ''} with unpublished events, in {quarantine}"
    remedy = "retried every 10 minutes; see the end of run/*/log in each folder; deleting a folder discards its events"
    return [Check("unsaid", CheckState.WARNING, text, remedy)]


async def _check_over_broker(context: Context, now: datetime, replied: set[str]) -> AsyncIterator[Check]:
    """Run the checks over the broker. Adds the names of services that reply to `replied`."""
    try:
        async with Herd.connect(context, patience=2) as herd:
            yield await check_broker(herd, context.nats_url)
            reports = await request_reports(herd.connection)
            replied |= {name for name, report in reports.items() if isinstance(report, ServiceReport)}
            for check in await check_herd(herd, reports, now):
                yield check
    except HerdError as error:
        yield Check("broker", CheckState.WRONG, error.problem.message, error.problem.remedy)


async def _check_service_over_http(name: str, address: str) -> Check:
    """The check of a service by the report that it sends over HTTP about its connection, consumers and dependencies."""
    try:
        status, body, _ = await asyncio.to_thread(_request_readiness, address)
    except (OSError, http.client.HTTPException) as error:
        return Check(name, CheckState.WRONG, f"{address} does not respond ({type(error).__name__})", STATUS_REMEDY)
    return check_service(name, address, body, ready=status == http.client.OK)


async def _check_clock(context: Context) -> Check:
    for address in context.services.values():
        try:
            _, _, date = await asyncio.to_thread(_request_readiness, address)
            if date is not None:
                return check_skew(datetime.now(UTC) - date)
        except (OSError, http.client.HTTPException, ValueError):
            continue
    return Check("clock", CheckState.UNKNOWN, "no HTTP address of a service is known to compare with")


def _request_readiness(address: str) -> tuple[int, str, datetime | None]:
    """Request `/readyz`. Returns the status, the text in one line, and the service's time."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=_HTTP_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        date = response.getheader("Date")
        text = " ".join(response.read(4096).decode(errors="replace").split())
        return response.status, text, parsedate_to_datetime(date) if date else None
    finally:
        connection.close()
