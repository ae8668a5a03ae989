"""GitHub Apps: JSON Web Tokens, installations and their tokens."""

import base64
import json
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.doubles.forges.clock import stamp
from tests.doubles.forges.forge_state import Account, Repository, new_id
from tests.doubles.forges.github_exchange import Exchange, Route
from tests.doubles.forges.github_pull_shapes import error
from tests.doubles.forges.replies import Reply

TokenForm = Literal["opaque", "stateless"]
LIFETIME: Final = timedelta(hours=1)
_LONGEST_JWT: Final = 600
_DRIFT: Final = 60
PERMISSIONS: Final = {
    "metadata": "read", "contents": "write", "pull_requests": "write", "issues": "write", "checks": "read",
    "statuses": "read",
}  # fmt: skip


@cache
def _key() -> rsa.RSAPrivateKey:
    """The key of all apps of a process: creating one takes a while."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class App:
    """An app with one installation."""

    slug: str
    account: Account
    owner: Account
    """The owner of the repositories."""
    permissions: Mapping[str, str] = field(default_factory=lambda: dict(PERMISSIONS))
    repositories: frozenset[str] | None = None
    """The full names of the repositories selected at its installation; None is all of them."""
    form: TokenForm = "opaque"
    """The form of its tokens: 40 characters, or `ghs_APPID_JWT`."""
    id: int = field(default_factory=new_id)
    installation: int = field(default_factory=new_id)
    suspended: datetime | None = None

    @property
    def private_key(self) -> str:
        """The private key as PEM, as GitHub's page downloads it."""
        kinds = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        return _key().private_bytes(*kinds, serialization.NoEncryption()).decode()

    def reaches(self, repository: Repository) -> bool:
        """Whether its installation has this repository."""
        return self.repositories is None or repository.full_name in self.repositories


def fault_of_jwt(app: App, token: str, now: datetime) -> str | None:
    """The reason why GitHub refuses a JSON Web Token; None if it is valid and of this app."""
    try:
        signed, _, signature = token.rpartition(".")
        claims = json.loads(_decoded(signed.split(".")[1]))
        _key().public_key().verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    except (ValueError, IndexError, InvalidSignature):
        return "A JSON web token could not be decoded"
    if str(claims.get("iss")) != str(app.id):
        return "'Issuer' claim ('iss') must be an Integer"
    issued, expires, seconds = claims.get("iat", 0), claims.get("exp", 0), now.timestamp()
    if issued > seconds + _DRIFT:
        return "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
    if expires <= seconds:
        return "'Expiration time' claim ('exp') must be a numeric value representing the future time"
    if expires - seconds > _LONGEST_JWT + _DRIFT:
        return "'Expiration time' claim ('exp') is too far in the future"
    return None


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def new_token(app: App, now: datetime) -> str:
    """Create an installation's token in the form of the app."""
    letters = string.ascii_letters + string.digits
    if app.form == "opaque":
        return "ghs_" + "".join(secrets.choice(letters) for _ in range(36))
    claims = {"iss": "github", "sub": app.installation, "exp": int((now + LIFETIME).timestamp()), "jti": new_id()}
    pieces = [_encoded(json.dumps(one).encode()) for one in ({"alg": "RS256", "typ": "JWT"}, claims)]
    return f"ghs_{app.id}_{'.'.join([*pieces, _encoded(secrets.token_bytes(256))])}"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def create_token(exchange: Exchange) -> Reply:
    """Create a token (201), limited to repositories and permissions of the installation."""
    app = _app(exchange, int(exchange.parameter("installation_id")))
    github, body = exchange.github, exchange.body
    if app.suspended:
        raise error(403, "This installation has been suspended")
    chosen = _chosen(exchange, app, body)
    permissions = dict(body.get("permissions") or app.permissions)
    if any(not _within(app, *one) for one in permissions.items()):
        raise error(422, "The permissions requested are not granted to this installation.")
    permissions.setdefault("metadata", "read")
    expires = github.clock.now() + LIFETIME
    made = github.issue_token(app, expires, chosen, permissions)
    selection = {"repository_selection": "all" if chosen is None else "selected"}
    listed = [one for one in github.repositories.values() if chosen is not None and one.full_name in chosen]
    shown = {"repositories": [exchange.shapes.repository(one) for one in listed]} if listed else {}
    return Reply(201, {"token": made, "expires_at": stamp(expires), "permissions": permissions, **selection, **shown})


def _chosen(exchange: Exchange, app: App, body: dict[str, Any]) -> frozenset[str] | None:
    if "repositories" not in body and "repository_ids" not in body:
        return app.repositories
    names, ids = set(body.get("repositories", [])), set(body.get("repository_ids", []))
    reached = [one for one in exchange.github.repositories.values() if app.reaches(one)]
    found = [one for one in reached if one.name in names or one.id in ids]
    if len(found) < len(names) + len(ids):
        raise error(422, "There is at least one repository that does not exist or is not accessible to the parent "
                         "installation.")  # fmt: skip
    return frozenset(one.full_name for one in found)


def _within(app: App, permission: str, level: str) -> bool:
    return app.permissions.get(permission) in ({"read", "write"} if level == "read" else {"write"})


def _app(exchange: Exchange, installation: int) -> App:
    app = exchange.github.apps.get(exchange.sender.principal)
    if app is None or app.installation != installation:
        raise error(404, "Not Found")
    return app


def repository_installation(exchange: Exchange) -> Reply:
    """The installation of this app in the repository of the path."""
    app = exchange.github.apps[exchange.sender.principal]
    if not app.reaches(exchange.repository):
        raise error(404, "Not Found")
    return Reply(200, _shown(exchange, app))


def revoke_token(exchange: Exchange) -> Reply:
    """Revoke the installation's token that sends the request."""
    if exchange.sender.kind != "installation":
        raise error(403, "Resource not accessible by personal access token")
    exchange.github.revoke(exchange.sender.value)
    return Reply(204)


def _shown(exchange: Exchange, app: App) -> dict[str, Any]:
    base = f"{exchange.github.api_url}/app/installations/{app.installation}"
    epoch = stamp(datetime(2026, 1, 1, tzinfo=UTC))
    return {
        "id": app.installation,
        "app_id": app.id,
        "app_slug": app.slug,
        "account": exchange.shapes.account(app.owner),
        "target_id": app.owner.id,
        "target_type": app.owner.kind,
        "repository_selection": "all" if app.repositories is None else "selected",
        "access_tokens_url": f"{base}/access_tokens",
        "repositories_url": f"{exchange.github.api_url}/installation/repositories",
        "html_url": f"{exchange.github.url}/organizations/{app.owner.login}/settings/installations/{app.installation}",
        "permissions": dict(app.permissions),
        "events": ["pull_request", "push"],
        "single_file_name": None,
        "created_at": epoch,
        "updated_at": epoch,
        "suspended_at": stamp(app.suspended) if app.suspended else None,
        "suspended_by": None,
    }


def rate_limit(exchange: Exchange) -> Reply:
    """The rate limits; this request does not count towards them."""
    core = exchange.github.limits(exchange.call.principal)
    return Reply(200, {"resources": {"core": core, "search": core}, "rate": core})


def get_user(exchange: Exchange) -> Reply:
    """The user of a user's token."""
    if exchange.sender.kind == "installation":
        raise error(403, "Resource not accessible by integration")
    account, epoch = exchange.sender.account, stamp(datetime(2026, 1, 1, tzinfo=UTC))
    absent = ("name", "company", "blog", "location", "email", "hireable", "bio")
    counts = ("public_repos", "public_gists", "followers", "following")
    return Reply(200, {**exchange.shapes.account(account), **dict.fromkeys(absent), **dict.fromkeys(counts, 0),
                       "created_at": epoch, "updated_at": epoch})  # fmt: skip


ROUTES: Final = {
    "apps/create-installation-access-token": Route(create_token),
    "apps/get-repo-installation": Route(repository_installation),
    "apps/revoke-installation-access-token": Route(revoke_token),
    "rate-limit/get": Route(rate_limit),
    "users/get-authenticated": Route(get_user),
}
