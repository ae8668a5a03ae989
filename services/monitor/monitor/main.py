"""The monitor service, composed: one watch over the whole herd, held by one replica at a time."""

from typing import Final

from monitor.acting import Acting
from monitor.following import Follower
from monitor.rules import Limits
from monitor.state import SPELL
from monitor.watch import Watch
from sandherd.bus.lease import Lease
from sandherd.bus.publishing import Speaker
from sandherd.bus.service import Service, serve
from sandherd.bus.together import together
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings

LEASE: Final = "monitor.watch"
JUNK_PER_DEAD_LETTER: Final = 5
"""A sandbox is ended when it has published this many times more junk than dead letters are stored of it."""


def limits_of(settings: Settings) -> Limits:
    """The limits of the rules, as they are set."""
    return Limits(
        dead_after=settings.dead_after,
        idle_after=settings.idle_after,
        stuck_after=settings.stuck_after,
        finished_after=settings.finished_after,
        max_age=settings.max_age,
        flood_bytes=settings.flood_mb * 1024 * 1024,
        flood_messages=round(settings.flood_messages * SPELL),
        flood_junk=settings.dead_letters_per_minute * JUNK_PER_DEAD_LETTER,
        loop_repeats=settings.loop_repeats,
        steering_cooldown=settings.steering_cooldown,
    )


def compose(settings: Settings) -> Service:
    """The monitor, ready to run."""
    service = Service(Principal.MONITOR, settings)

    async def watch() -> None:
        lease = Lease(service.bus, LEASE, service.instance)
        service.health.add(LEASE, lease.problem)
        service.meters.watch("sandherd_lease_held", lambda: lease.held, lease=LEASE)
        await together(lease.keep(), _watch_while_held(service, lease))

    service.background("watch", watch)
    return service


async def _watch_while_held(service: Service, lease: Lease) -> None:
    speaker = Speaker(service.bus, Principal.MONITOR, service.instance)
    limits = limits_of(service.settings)
    while True:
        service.health.add("watch", lambda: None)
        await lease.wait_held()
        follower = Follower(service.bus)
        service.health.add("watch", follower.problem)
        acting = Acting(service.bus, speaker)
        watch = Watch(service.bus, lease, limits, acting=acting, follower=follower, meters=service.meters)
        await watch.run(service.settings.check_interval)


def main() -> None:
    """Run until stopped."""
    serve(Principal.MONITOR, compose)


if __name__ == "__main__":
    main()
