"""An OpenID provider: discovery, keys, the code flow with PKCE and client authentication, and faults that a test sets.

A code is valid for one client, one redirect URI and one use, as providers must ensure.
"""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

CLIENT: Final = "sandherd"
SECRET: Final = "s3cret/+"


@dataclass
class OidcProvider:
    """The provider, its only user, and its faults."""

    issuer: str = ""
    claims: dict[str, Any] = field(
        default_factory=lambda: {"sub": "u1", "email": "ada@example.com", "email_verified": True}
    )
    """Claims of the user, and any others to replace those of the protocol; None leaves one out."""
    keys: list[ECKey] = field(default_factory=lambda: [ECKey.generate_key("P-256", {"kid": "k1"})])
    signer: ECKey | None = None
    """A key that signs tokens in place of the last published one."""
    unsigned: bool = False
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    keys_read: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["OidcProvider"]:
        """Serve until the end of the context."""
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._configuration)
        app.router.add_get("/keys", self._keys)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def rotate(self) -> None:
        """Sign with another key from now on, and publish only that one."""
        self.keys = [ECKey.generate_key("P-256", {"kid": secrets.token_hex(4)})]

    def id_token(self, nonce: str) -> str:
        """The ID token of the user."""
        now = int(time.time())
        own = {"iss": self.issuer, "aud": CLIENT, "nonce": nonce, "iat": now, "exp": now + 300}
        claims = {name: value for name, value in (own | self.claims).items() if value is not None}
        if self.unsigned:
            return ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)) + "."
        key = self.signer or self.keys[-1]
        return jwt.encode({"alg": "ES256", "kid": str(key.kid)}, claims, key)

    async def _configuration(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "response_types_supported": ["code"],
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def _keys(self, _request: web.Request) -> web.Response:
        self.keys_read += 1
        return web.json_response(KeySet(list(self.keys)).as_dict(private=False))

    async def _authorize(self, request: web.Request) -> web.Response:
        requested = dict(request.query)
        assert (requested["response_type"], requested["client_id"]) == ("code", CLIENT)
        assert (requested["code_challenge_method"], "openid" in requested["scope"].split()) == ("S256", True)
        code = secrets.token_urlsafe(16)
        self.codes[code] = requested
        query = urlencode({"code": code, "state": requested["state"], "iss": self.issuer})
        raise web.HTTPFound(f"{requested['redirect_uri']}?{query}")

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        pair = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        requested = self.codes.pop(str(form["code"]), None)
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        challenge = _encoded(digest)
        if (
            pair != f"{CLIENT}:s3cret%2F%2B"
            or requested is None
            or requested["redirect_uri"] != form["redirect_uri"]
            or requested["code_challenge"] != challenge
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response(
            {"access_token": "x", "token_type": "Bearer", "id_token": self.id_token(requested["nonce"])}
        )


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
