"""The HTTP proxy of this machine, for requests that aiohttp sends."""

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def machine_proxy(url: str) -> str | None:
    """The proxy for this URL by the same variables as in git; None if there is none.

    aiohttp's `trust_env` would also read netrc(5).
    """
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
