"""The checks of a herd that are based on replies of its services and its broker."""

import asyncio
from datetime import datetime
from typing import Final

from sandherd.client.doctor.audit import check_audit
from sandherd.client.doctor.check import Check, CheckState
from sandherd.client.doctor.database import with_failed_requests
from sandherd.client.doctor.runtimes import check_runtimes
from sandherd.client.doctor.services import UNAVAILABLE_REMEDY, Answers, remedy_of, service_checks
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd

MIN_BROKER_VERSION: Final = (2, 12)
"""The oldest nats-server that supports per-message times to live, which streams and leases need."""


def check_version(version: tuple[int, int, int], address: str | None, milliseconds: float) -> Check:
    """Whether the broker is new enough."""
    location = f" at {address}" if address else ""
    text = f"nats-server {'.'.join(map(str, version))}{location}, round-trip time {milliseconds:.1f} ms"
    if version[:2] < MIN_BROKER_VERSION:
        oldest = ".".join(map(str, MIN_BROKER_VERSION))
        return Check("broker", CheckState.WRONG, text, f"use nats-server {oldest} or newer")
    return Check("broker", CheckState.RIGHT, text)


async def check_broker(herd: Herd, address: str | None = None) -> Check:
    """Whether the broker responds, and is new enough."""
    import nats.errors  # not before `sandherd.bus`, which loads nats-py without aiohttp

    client = herd.connection.bus.client
    try:
        milliseconds = await client.rtt() * 1000
    except (nats.errors.Error, TimeoutError) as error:
        return Check("broker", CheckState.WRONG, f"it does not respond: {type(error).__name__}", UNAVAILABLE_REMEDY)
    version = client.connected_server_version
    return check_version((version.major, version.minor, version.patch), address, milliseconds)


async def check_herd(herd: Herd, answers: Answers, now: datetime) -> list[Check]:
    """All checks: of the services by their reports, of the live state, of the runtimes and of the history."""
    live, runtimes, history = await asyncio.gather(_check_live_state(herd), _check_runtimes(herd), _check_history(herd))
    return with_failed_requests([*service_checks(answers, now), live, *runtimes, *history])


async def _check_live_state(herd: Herd) -> Check:
    try:
        page = await herd.tasks(limit=1)
    except HerdError as error:
        return Check("live state", CheckState.WRONG, error.problem.message, remedy_of(error))
    if page.origin == "live":
        return Check("live state", CheckState.RIGHT, "the spawner replies")
    return Check("live state", CheckState.WRONG, "the spawner is unavailable", UNAVAILABLE_REMEDY)


async def _check_runtimes(herd: Herd) -> list[Check]:
    try:
        return check_runtimes((await herd.catalogue()).runtimes)
    except HerdError:
        return []  # "live state" reports why the spawner does not reply


async def _check_history(herd: Herd) -> list[Check]:
    try:
        return check_audit(await herd.audit())
    except HerdError as error:
        return [Check("history", CheckState.WRONG, error.problem.message, remedy_of(error))]
