"""The OpenID provider over HTTP: its configuration, its keys, and the exchange of a code for an ID token."""

import json
import math
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from gateway.oidc.flow import SignInError
from gateway.oidc.identity import IdentityError
from sandherd.settings import Settings

_CACHE_SECONDS: Final = 3600.0
"""How long the configuration and the keys are used, in seconds."""
_RELOAD_SECONDS: Final = 10.0
"""Minimum seconds between two reloads of the keys. They are reloaded if a token is signed by an unknown key."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0, connect=5.0)
_MAX_RESPONSE_BYTES: Final = 256 * 1024


class ProviderError(SignInError):
    """The provider does not respond, or its response does not conform to OpenID Connect."""

    reason = "provider"


@dataclass(frozen=True)
class ProviderConfiguration:
    """What the provider publishes about itself."""

    # The URLs of its endpoints:
    authorization: str
    token: str
    keys: str
    sends_issuer: bool
    """Whether each response has the parameter `iss` (RFC 9207)."""
    basic: bool
    """Whether the client's secret is sent in the header `Authorization`. Otherwise it is a field of the form."""


class OidcProvider:
    """The provider that the settings name. Methods raise `ProviderError`."""

    def __init__(self, settings: Settings) -> None:
        self.issuer = settings.oidc_issuer or ""
        self.client_id = settings.oidc_client_id or ""
        self._secret_file = settings.oidc_client_secret_file
        self._configuration: tuple[float, ProviderConfiguration] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._reloaded_at = -math.inf

    async def configuration(self) -> ProviderConfiguration:
        """The provider's configuration, which is read once an hour."""
        cached, now = self._configuration, time.monotonic()
        if cached is None or now - cached[0] > _CACHE_SECONDS:
            document = await _fetch("GET", f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
            cached = (now, configuration_of(document, self.issuer))
            self._configuration = cached
        return cached[1]

    async def keys(self, *, reload: bool = False) -> KeySet:
        """The provider's public keys. With `reload` they are read again, because none fits a token."""
        cached, now = self._keys, time.monotonic()
        must_reload = reload and now - self._reloaded_at > _RELOAD_SECONDS
        if must_reload:
            self._reloaded_at = now
        if cached is None or must_reload or now - cached[0] > _CACHE_SECONDS:
            document = await _fetch("GET", (await self.configuration()).keys)
            try:
                cached = (now, KeySet.import_key_set(document))  # type: ignore[arg-type]  # it is checked there
            except (JoseError, ValueError, TypeError, KeyError) as error:
                raise ProviderError(f"the provider's keys are invalid: {type(error).__name__}") from error
            self._keys = cached
        return cached[1]

    async def id_token(self, code: str, verifier: str, redirect_uri: str) -> str:
        """The ID token for a code."""
        configuration = await self.configuration()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers, fields = self._credential(basic=configuration.basic)
        document = await _fetch("POST", configuration.token, data=form | fields, headers=headers)
        token = document.get("id_token")
        if not isinstance(token, str):
            raise ProviderError("the provider's response has no ID token")
        return token

    def _credential(self, *, basic: bool) -> tuple[dict[str, str], dict[str, str]]:
        """The headers and the additional form fields that authenticate the gateway."""
        if self._secret_file is None:
            return {}, {"client_id": self.client_id}
        try:
            secret = self._secret_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ProviderError(f"the client's secret can't be read: {type(error).__name__}") from error
        if not basic:
            return {}, {"client_id": self.client_id, "client_secret": secret}
        # RFC 6749, section 2.3.1, requires that both are encoded.
        pair = f"{quote(self.client_id, safe='')}:{quote(secret, safe='')}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}, {}


def configuration_of(document: Mapping[str, Any], issuer: str) -> ProviderConfiguration:
    """The configuration in this document. Raises `ProviderError` if it is of another issuer, or has an unsafe URL."""
    if document.get("issuer") != issuer:
        raise ProviderError("the provider's configuration is that of another issuer")
    names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
    endpoints = [str(document.get(name, "")) for name in names]
    for name, url in zip(names, endpoints, strict=True):
        parts = urlsplit(url)
        if not parts.hostname or (parts.scheme != "https" and not issuer.startswith("http://")):
            raise ProviderError(f"{name} is not an https URL")
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    sends_issuer = document.get("authorization_response_iss_parameter_supported") is True
    authorization, token, keys = endpoints
    return ProviderConfiguration(authorization, token, keys, sends_issuer, basic="client_secret_basic" in methods)


async def _fetch(method: str, url: str, **options: Any) -> dict[str, Any]:
    """The JSON object of a response. Redirects are not followed, as a code would be sent to another server."""
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as session,
            session.request(method, url, allow_redirects=False, **options) as response,
        ):
            body = await _read_limited(response)
            if response.status in {400, 401} and method == "POST":
                raise IdentityError("the provider refuses the code")
            if response.status != 200:
                raise ProviderError(f"the provider responds with {response.status}")
        document = json.loads(body)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError) as error:
        raise ProviderError(type(error).__name__) from error
    if not isinstance(document, dict):
        raise ProviderError("the provider's response is not a JSON object")
    return document


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_chunked(65_536):
        body += piece
        if len(body) > _MAX_RESPONSE_BYTES:
            raise ProviderError("the provider's response is too large")
    return bytes(body)
