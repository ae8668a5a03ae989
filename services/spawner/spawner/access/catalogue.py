"""What can be asked for here, from the settings and from what the runtimes can do. Pure."""

from collections.abc import Mapping

from sandherd.contracts.harnesses import HARNESSES
from sandherd.contracts.requests import Catalogue, RuntimeView
from sandherd.contracts.specs import MOST_ATTEMPTS
from sandherd.settings import Settings
from spawner.access.refusals import MIB
from spawner.resolving import Menu
from spawner.runtimes.contract import Runtime


def catalogue(settings: Settings, menu: Menu, runtimes: Mapping[str, Runtime], secrets_key: str) -> Catalogue:
    """The answer to `list_runtimes`."""
    return Catalogue(
        runtimes=[_view(runtimes[name], menu, settings) for name in sorted(runtimes)],
        profiles=dict(menu.profiles),
        harnesses=list(HARNESSES),
        caps=menu.caps,
        defaults=menu.defaults,
        max_attempts=MOST_ATTEMPTS,
        max_ttl_seconds=int(menu.max_ttl),
        max_file_bytes=settings.max_file_mb * MIB,
        secrets_key=secrets_key,
    )


def _view(runtime: Runtime, menu: Menu, settings: Settings) -> RuntimeView:
    can = runtime.capabilities
    return RuntimeView(
        runtime=runtime.name,
        default=runtime.name == menu.default_runtime,
        isolation=can.isolation,
        can_pause=can.can_pause,
        memory=can.memory,
        processes=can.processes,
        cores=can.cores,
        disk=can.disk,
        ports=can.ports,
        network=can.network,
        host_uid=can.host_uid,
        limit=settings.runtime_limits.get(runtime.name),
        gaps=list(can.gaps),
    )
