"""Sign-in by the provider of the settings: where the browser goes, and who it is when it comes back."""

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
    """The user or the provider has ended the sign-in."""

    reason = "denied"


class NoProjectError(SignInError):
    """The user is in none of the groups of the settings."""

    reason = "no_project"


class OidcSignIn:
    """The sign-ins of a gateway. Methods raise `SignInError`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._provider = OidcProvider(settings)

    async def address(self, flow: SignInFlow, host: str) -> str:
        """The URL of the provider for a sign-in that begins."""
        configuration = await self._provider.configuration()
        scopes = list(dict.fromkeys(["openid", *self._settings.oidc_scopes]))
        return flow.request(configuration.authorization, self._provider.client_id, self._redirect_uri(host), scopes)

    async def identity(self, flow: SignInFlow, host: str, *, code: str | None, issuer: str | None) -> OidcIdentity:
        """The user whom the provider has identified by this code; `issuer` is the parameter `iss` of its response."""
        await self._check_issuer(issuer)
        if code is None:
            raise DeniedError("the provider has sent no code")
        token = await self._provider.id_token(code, flow.verifier, self._redirect_uri(host))
        try:
            return await self._identified(token, flow, rotated=False)
        except UnknownKeyError:
            return await self._identified(token, flow, rotated=True)

    def roles(self, identity: OidcIdentity) -> dict[str, AccessRole]:
        """What the user may do, by project: in at least one."""
        found = roles_of(self._settings.oidc_grants, identity.groups)
        if not found:
            raise NoProjectError(f"no group of {identity.user} is in SANDHERD_OIDC_GRANTS")
        return found

    async def _identified(self, token: str, flow: SignInFlow, *, rotated: bool) -> OidcIdentity:
        return identity_of(
            token,
            await self._provider.keys(rotated=rotated),
            issuer=self._provider.issuer,
            client_id=self._provider.client_id,
            nonce=flow.nonce,
            groups_claim=self._settings.oidc_groups_claim,
            now=datetime.now(UTC),
        )

    async def _check_issuer(self, issuer: str | None) -> None:
        """Refuse the response of another provider (RFC 9207): its code would be sent to this one."""
        required = (await self._provider.configuration()).names_itself
        if issuer != self._provider.issuer and (required or issuer is not None):
            raise SignInError("the response is that of another issuer")

    def _redirect_uri(self, host: str) -> str:
        if self._settings.gateway_url is not None:
            return self._settings.gateway_url.rstrip("/") + CALLBACK
        if urlsplit(f"//{host}").hostname not in _LOOPBACK:
            raise ProviderError("SANDHERD_GATEWAY_URL is not set")
        return f"http://{host}{CALLBACK}"
