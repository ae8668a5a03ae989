"""The runtimes, profiles and limits that this herd offers, from its settings and its runtimes' capabilities. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sandherd.contracts.requests import Catalogue, RuntimeView
from sandherd.contracts.specs import MAX_ATTEMPTS
from sandherd.settings import Settings
from spawner.access.refusals import MIB
from spawner.runtimes.contract import Runtime
from spawner.spec_resolution import SpawnPolicy


def catalogue(
    settings: Settings,
    policy: SpawnPolicy,
    runtimes: Mapping[str, Runtime],
    *,
    harnesses: Sequence[str],
    secrets_key: str,
    origins: Mapping[str, str] = MappingProxyType({}),
) -> Catalogue:
    """The reply to `list_runtimes`. `origins` has the distribution of each runtime that is a plugin, by its name."""
    return Catalogue(
        runtimes=[_view(runtimes[name], policy, settings, origins.get(name, "")) for name in sorted(runtimes)],
        profiles=dict(policy.profiles),
        harnesses=list(harnesses),
        caps=policy.caps,
        defaults=policy.defaults,
        max_attempts=MAX_ATTEMPTS,
        max_ttl_seconds=int(policy.max_ttl),
        max_file_bytes=settings.max_file_mb * MIB,
        secrets_key=secrets_key,
    )


def _view(runtime: Runtime, policy: SpawnPolicy, settings: Settings, plugin: str) -> RuntimeView:
    can = runtime.capabilities
    return RuntimeView(
        runtime=runtime.name,
        default=runtime.name == policy.default_runtime,
        isolation=can.isolation,
        can_pause=can.can_pause,
        memory=can.memory,
        processes=can.processes,
        cores=can.cores,
        disk=can.disk,
        ports=can.ports,
        network=can.network,
        host_uid=can.host_uid,
        worker_start=can.worker_start,
        limit=settings.runtime_limits.get(runtime.name),
        gaps=list(can.gaps),
        plugin=plugin,
    )
