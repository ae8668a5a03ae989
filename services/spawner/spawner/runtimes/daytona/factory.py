"""Opens the Daytona runtime: checks once that the key is accepted and that the snapshot exists."""

from daytona import AsyncDaytona, DaytonaConfig, ListSandboxesQuery

from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.daytona.creation import has_snapshot
from spawner.runtimes.daytona.faults import DaytonaFaults
from spawner.runtimes.daytona.provider import DaytonaProvider
from spawner.runtimes.daytona.sandboxes import MARK, DaytonaOptions

_log = logs.get("runtime.daytona")


async def open_daytona(settings: Settings, herd: str) -> BoxRuntime:
    """Open the runtime. Raises `RuntimeFailedError` if Daytona rejects the key or the snapshot is missing."""
    _require_settings(settings)
    options = DaytonaOptions.of(settings)
    daytona = AsyncDaytona(config(settings))
    try:
        await _test_access(daytona, options)
    except ProviderError as error:
        await daytona.close()
        raise RuntimeFailedError(RuntimeFault.REFUSED, str(error)) from error
    _log.info("daytona runtime enabled", target=settings.daytona_target, source=options.snapshot or options.image)
    return BoxRuntime(DaytonaProvider(daytona, options), herd, settings.sandbox_nats_url)


def config(settings: Settings) -> DaytonaConfig:
    """The SDK's configuration. Every value is set, because the SDK reads missing values from a file `.env`."""
    return DaytonaConfig(
        api_key=settings.daytona_api_key,
        jwt_token=None if settings.daytona_api_key else settings.daytona_jwt_token,
        organization_id=settings.daytona_organization_id,
        api_url=settings.daytona_api_url or "https://app.daytona.io/api",
        target=settings.daytona_target,
        connection_pool_maxsize=None,
        otel_enabled=False,
    )


def _require_settings(settings: Settings) -> None:
    if not settings.daytona_api_key and not (settings.daytona_jwt_token and settings.daytona_organization_id):
        message = "runtime daytona needs DAYTONA_API_KEY, or DAYTONA_JWT_TOKEN and DAYTONA_ORGANIZATION_ID"
        raise RuntimeFailedError(RuntimeFault.REFUSED, message)
    if not settings.daytona_snapshot and not settings.sandbox_image:
        message = "runtime daytona needs a snapshot or an image: set SANDHERD_DAYTONA_SNAPSHOT or SANDBOX_IMAGE"
        raise RuntimeFailedError(RuntimeFault.REFUSED, message)


async def _test_access(daytona: AsyncDaytona, options: DaytonaOptions) -> None:
    errors = DaytonaFaults(options.secrets)
    with errors.faults("authenticating"):
        async for _ in daytona.list(ListSandboxesQuery(labels=MARK, limit=1), options.patience):
            break
    if options.snapshot and not await has_snapshot(daytona, options.snapshot, errors):
        raise ProviderError(ProviderFault.REFUSED, f"daytona: there is no snapshot {options.snapshot}")
