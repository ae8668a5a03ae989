"""Sign-in by the OpenID provider of the settings: the URL where a sign-in begins, and the user that it identifies."""

from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from gateway.oidc.flow import SignInError, SignInFlow
from gateway.oidc.identity import OidcIdentity, UnknownKeyError, identity_of, roles_of
from gateway.oidc.provider import OidcProvider, ProviderError
from sandherd.contracts.records import AccessRole
from sandherd.settings import Settings

CALLBACK: Final = "/api/v1/sign-in/oidc/callback"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class DeniedError(SignInError):
    """The user or the provider denied the sign-in: the provider's response contains no code."""

    reason = "denied"


class NoProjectError(SignInError):
    """The user is in none of the groups that `SANDHERD_OIDC_GRANTS` names."""

    reason = "no_project"


class OidcSignIn:
    """Sign-in to a gateway by OpenID Connect. Methods raise `SignInError`.

    The parameter `host` is the header `Host` of the browser's request.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._provider = OidcProvider(settings)

    async def authorization_url(self, flow: SignInFlow, host: str) -> str:
        """The URL of the provider that the browser is redirected to when a sign-in begins."""
        configuration = await self._provider.configuration()
        scopes = list(dict.fromkeys(["openid", *self._settings.oidc_scopes]))
        return flow.authorization_url(
            configuration.authorization, self._provider.client_id, self._redirect_uri(host), scopes
        )

    async def identity(self, flow: SignInFlow, host: str, *, code: str | None, issuer: str | None) -> OidcIdentity:
        """The user for whom the provider has issued `code`. `issuer` is the parameter `iss` of its response."""
        await self._check_issuer(issuer)
        if code is None:
            raise DeniedError("the provider's response has no code")
        token = await self._provider.id_token(code, flow.verifier, self._redirect_uri(host))
        try:
            return await self._verify(token, flow, reload_keys=False)
        except UnknownKeyError:
            return await self._verify(token, flow, reload_keys=True)

    def roles(self, identity: OidcIdentity) -> dict[str, AccessRole]:
        """The user's role in each project, for at least one project. Raises `NoProjectError` if there is none."""
        roles = roles_of(self._settings.oidc_grants, identity.groups)
        if not roles:
            raise NoProjectError(f"no group of {identity.user} is in SANDHERD_OIDC_GRANTS")
        return roles

    async def _verify(self, token: str, flow: SignInFlow, *, reload_keys: bool) -> OidcIdentity:
        return identity_of(
            token,
            await self._provider.keys(reload=reload_keys),
            issuer=self._provider.issuer,
            client_id=self._provider.client_id,
            nonce=flow.nonce,
            groups_claim=self._settings.oidc_groups_claim,
            now=datetime.now(UTC),
        )

    async def _check_issuer(self, issuer: str | None) -> None:
        """Refuse the response of another provider (RFC 9207), whose code would otherwise be sent to this provider."""
        required = (await self._provider.configuration()).sends_issuer
        if issuer != self._provider.issuer and (required or issuer is not None):
            raise SignInError("the response is from another issuer")

    def _redirect_uri(self, host: str) -> str:
        if self._settings.gateway_url is not None:
            return self._settings.gateway_url.rstrip("/") + CALLBACK
        if urlsplit(f"//{host}").hostname not in _LOOPBACK:
            raise ProviderError("SANDHERD_GATEWAY_URL is not set")
        return f"http://{host}{CALLBACK}"
