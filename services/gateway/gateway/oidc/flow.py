"""One sign-in: its state, nonce and PKCE verifier, which are derived from a secret in the browser's cookie. Pure.

Replicas store nothing: the cookie shows that this browser has begun the sign-in. The value `state` is also derived from
the project and the page.
"""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote, unquote, urlencode

COOKIE: Final = "__Host-sandherd-sign-in"
"""The cookie with the secret of a sign-in that has begun."""
SECONDS: Final = 600
"""Maximum duration of a sign-in, in seconds."""
_PAGE: Final = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]{0,500}")
"""A path that does not begin with two slashes and has no backslash, as browsers may read both as a host."""
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class SignInError(Exception):
    """A sign-in is refused. `reason` is shown by the page. The text is logged, and contains no value of a token."""

    reason = "state"


@dataclass(frozen=True)
class SignInFlow:
    """A sign-in to `project`, or to the only project of the user if it is empty. The browser is then sent to `page`."""

    secret: str
    project: str
    page: str

    @classmethod
    def begin(cls, project: str | None, page: str | None) -> Self:
        """A new sign-in."""
        return cls(secrets.token_urlsafe(32), project or "", local_page(page))

    @classmethod
    def of_cookie(cls, value: str) -> Self | None:
        """The sign-in that a browser has begun, from its cookie; None for an invalid cookie."""
        parts = [unquote(part) for part in value.split(".")]
        if len(parts) != 3 or not _SECRET.fullmatch(parts[0]):
            return None
        return cls(parts[0], parts[1], local_page(parts[2]))

    def cookie(self) -> str:
        """The value of the cookie."""
        # `quote` does not encode dots, which separate the parts.
        return ".".join(quote(part, safe="").replace(".", "%2E") for part in (self.secret, self.project, self.page))

    @property
    def state(self) -> str:
        """The parameter `state`, which the provider returns unchanged."""
        return self._derive("state", self.project, self.page)

    @property
    def nonce(self) -> str:
        """The value that the claim `nonce` of the ID token must have."""
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        """The PKCE verifier: the provider accepts the code only together with it."""
        return self._derive("verifier")

    def authorization_url(self, endpoint: str, client_id: str, redirect_uri: str, scopes: list[str]) -> str:
        """The URL of the provider to which the browser is sent."""
        query = urlencode(
            {
                "response_type": "code",
                "client_id": client_id,
                "redirect_uri": redirect_uri,
                "scope": " ".join(scopes),
                "state": self.state,
                "nonce": self.nonce,
                "code_challenge": _encode(hashlib.sha256(self.verifier.encode()).digest()),
                "code_challenge_method": "S256",
            }
        )
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"

    def matches(self, state: str) -> bool:
        """Whether a response with this parameter `state` belongs to this sign-in."""
        return hmac.compare_digest(state.encode(), self.state.encode())

    def _derive(self, *purpose: str) -> str:
        return _encode(hmac.digest(self.secret.encode(), "\0".join(purpose).encode(), "sha256"))


def local_page(page: str | None) -> str:
    """`page` if it is the path of a page of the gateway; else `/`, for example for another site or the API."""
    if page is None or not _PAGE.fullmatch(page) or page.startswith("/api/"):
        return "/"
    return page


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
