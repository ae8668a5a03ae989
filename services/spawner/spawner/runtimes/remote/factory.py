"""Opens the remote runtime. Lists the runtimes of the Runtime API once, so that an invalid key is detected."""

from typing import Final

from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.runtimes.boxes.provider import ProviderError
from spawner.runtimes.boxes.retry import DEFAULT_LIMITS
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.remote.api_clients import HttpSession, RuntimeApi
from spawner.runtimes.remote.creation import RemoteRuntimeOptions
from spawner.runtimes.remote.provider import RemoteProvider

RETRIES: Final = DEFAULT_LIMITS
_log = logs.get("runtime.remote")


async def open_remote(settings: Settings, herd: str) -> BoxRuntime:
    """Open the runtime. Raises `RuntimeFailedError` if a setting is missing, or the Runtime API refuses the request."""
    url, key, options = _connection_settings(settings, herd)
    http = HttpSession(settings.remote_api_timeout)
    api = RuntimeApi(http, url, key, RETRIES)
    try:
        runtimes = await api.list_runtimes()
    except ProviderError as error:
        await http.close()
        raise RuntimeFailedError(RuntimeFault.REFUSED, str(error)) from error
    _log.info("remote runtime enabled", url=url, image=options.image, runtimes=len(runtimes))
    return BoxRuntime(RemoteProvider(http, api, options), herd, settings.sandbox_nats_url)


def _connection_settings(settings: Settings, herd: str) -> tuple[str, str, RemoteRuntimeOptions]:
    url, key, image = settings.remote_api_url, settings.remote_api_key, settings.sandbox_image
    missing = {
        "SANDBOX_REMOTE_RUNTIME_API_URL": url,
        "SANDBOX_API_KEY": key,
        "SANDBOX_IMAGE": image,
    }
    if url is None or key is None or image is None:
        names = ", ".join(name for name, value in missing.items() if value is None)
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"runtime remote needs {names}: set it")
    if not (settings.remote_keep_alive or settings.remote_pause_on_close):
        message = "undelivered events of a sandbox would be lost: set SANDBOX_KEEP_RUNTIME_ALIVE"
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"runtime remote: {message} or SANDBOX_PAUSE_CLOSED_RUNTIMES")
    options = RemoteRuntimeOptions(
        image=image,
        command=settings.remote_command,
        factor=settings.remote_resource_factor,
        factor_gb=settings.remote_factor_memory_gb,
        runtime_class=settings.remote_runtime_class,
        keep_alive=settings.remote_keep_alive,
        init_timeout=settings.remote_init_timeout,
        herd=herd,
        retries=RETRIES,
    )
    return url, key, options
