"""Opening the remote runtime: the Runtime API is asked for its list, once, so that a wrong key is found now."""

from typing import Final

from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.runtimes.boxes.provider import ProviderError
from spawner.runtimes.boxes.retrying import USUAL
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.remote.bringing import Kind
from spawner.runtimes.remote.calls import Http, RuntimeApi
from spawner.runtimes.remote.provider import Remote

PATIENCE: Final = USUAL
_log = logs.get("runtime.remote")


async def open_remote(settings: Settings, herd: str) -> BoxRuntime:
    """The runtime. Raises `RuntimeFailedError` where a setting is missing, or the Runtime API takes no call."""
    url, key, kind = _told(settings, herd)
    http = Http(settings.remote_api_timeout)
    api = RuntimeApi(http, url, key, PATIENCE)
    try:
        there = await api.all()
    except ProviderError as error:
        await http.close()
        raise RuntimeFailedError(RuntimeFault.REFUSED, str(error)) from error
    _log.info("remote runtime", url=url, image=kind.image, runtimes=len(there))
    return BoxRuntime(Remote(http, api, kind), herd, settings.sandbox_nats_url)


def _told(settings: Settings, herd: str) -> tuple[str, str, Kind]:
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
        told = "what a sandbox could not say would be lost: set SANDBOX_KEEP_RUNTIME_ALIVE"
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"runtime remote: {told} or SANDBOX_PAUSE_CLOSED_RUNTIMES")
    kind = Kind(
        image=image,
        command=settings.remote_command,
        factor=settings.remote_resource_factor,
        factor_gb=settings.remote_factor_memory_gb,
        runtime_class=settings.remote_runtime_class,
        keep_alive=settings.remote_keep_alive,
        init_timeout=settings.remote_init_timeout,
        herd=herd,
        patience=PATIENCE,
    )
    return url, key, kind
