"""The double of GitHub: apps, their JSON Web Tokens, and the tokens of their installations."""

import base64
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.doubles.forges.clock import Clock
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.github import GitHub
from tests.doubles.forges.github_apps import App
from tests.integration.doubles.conftest import Api


def jwt(app: App, now: datetime, lifetime: float = 600, key: str | None = None, **claims: Any) -> str:
    """A JSON Web Token as a client of the app signs it."""
    seconds = int(now.timestamp())
    body = {"iss": str(app.id), "iat": seconds - 60, "exp": seconds + int(lifetime), **claims}
    pieces = [_encoded(json.dumps(one).encode()) for one in ({"alg": "RS256", "typ": "JWT"}, body)]
    signed = ".".join(pieces)
    private = serialization.load_pem_private_key((key or app.private_key).encode(), None)
    assert isinstance(private, rsa.RSAPrivateKey)
    signature = private.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{_encoded(signature)}"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _tokens(app: App) -> str:
    return f"/app/installations/{app.installation}/access_tokens"


@pytest.mark.parametrize("form", ["opaque", "stateless"])
async def test_installation_token(api: Api, shop: Repository, github: GitHub, clock: Clock, form: Any) -> None:
    """A token of either form has the chosen repository and permissions, and is valid for an hour."""
    github.create_repository("team/other")
    app = github.install_app(form=form)
    found = await api("GET", "/repos/team/shop/installation", token=jwt(app, clock.now()))
    assert found.json["id"] == app.installation
    chosen = {"repositories": ["shop"], "permissions": {"contents": "read", "pull_requests": "write"}}
    made = await api("POST", _tokens(app), chosen, token=jwt(app, clock.now()))
    assert made.status == 201, made.text
    token, expires = made.json["token"], datetime.fromisoformat(made.json["expires_at"])
    assert token.startswith("ghs_" if form == "opaque" else f"ghs_{app.id}_eyJ")
    assert (len(token) == 40) == (form == "opaque")
    assert timedelta(minutes=59) < expires - clock.now() <= timedelta(hours=1)
    assert (await api("GET", "/repos/team/shop/pulls", token=token)).status == 200
    assert (await api("GET", "/repos/team/other/pulls", token=token)).status == 404
    ref = {"ref": "refs/heads/a", "sha": shop.git.head("main")}
    refused = await api("POST", "/repos/team/shop/git/refs", ref, token=token)
    assert (refused.status, refused.json["message"]) == (403, "Resource not accessible by integration")
    clock.advance(3601)
    assert (await api("GET", "/repos/team/shop/pulls", token=token)).status == 401


async def test_token_revokes_itself(api: Api, shop: Repository, github: GitHub) -> None:
    """The token is not valid afterwards; a user's token is not revoked that way."""
    token = github.installation_token(github.install_app())
    assert (await api("DELETE", "/installation/token", token=token)).status == 204
    assert (await api("GET", "/repos/team/shop", token=token)).status == 401
    assert (await api("DELETE", "/installation/token")).status == 403


async def test_bot_is_the_author(api: Api, shop: Repository, github: GitHub, clock: Clock) -> None:
    """What an installation's token creates belongs to the bot of the app."""
    app = github.install_app("sandherd")
    pull = {"title": "Sum", "head": "feature/sum", "base": "main"}
    made = await api("POST", "/repos/team/shop/pulls", pull, token=github.installation_token(app))
    assert (made.json["user"]["login"], made.json["user"]["type"]) == ("sandherd[bot]", "Bot")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lifetime": -1}, "future time"),
        ({"lifetime": 3600}, "too far in the future"),
        ({"iss": "1"}, "iss"),
        ({"iat": 4_000_000_000}, "iat"),
    ],
)
async def test_invalid_jwt_is_401(
    api: Api, shop: Repository, github: GitHub, clock: Clock, changes: dict[str, Any], text: str
) -> None:
    """A JWT that is expired, too long, of another issuer, or from the future is refused."""
    app = github.install_app()
    refused = await api("POST", _tokens(app), {}, token=jwt(app, clock.now(), **changes))
    assert refused.status == 401
    assert text in refused.json["message"]


async def test_jwt_of_another_key_is_401(api: Api, shop: Repository, github: GitHub, clock: Clock) -> None:
    """The signature is verified."""
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    app = github.install_app()
    assert (await api("POST", _tokens(app), {}, token=jwt(app, clock.now(), key=other.decode()))).status == 401


async def test_token_beyond_the_installation_is_422(api: Api, shop: Repository, github: GitHub, clock: Clock) -> None:
    """A token can't have a permission or a repository that the installation lacks."""
    github.create_repository("team/other")
    app = github.install_app(repositories=frozenset({"team/shop"}))
    for sent in ({"permissions": {"workflows": "write"}}, {"repositories": ["other"]}):
        assert (await api("POST", _tokens(app), sent, token=jwt(app, clock.now()))).status == 422
    assert (await api("GET", "/repos/team/other/installation", token=jwt(app, clock.now()))).status == 404


async def test_suspended_installation_is_403(api: Api, shop: Repository, github: GitHub, clock: Clock) -> None:
    """A user's token has no access to an app either."""
    app = github.install_app(suspended=clock.now())
    assert (await api("POST", _tokens(app), {}, token=jwt(app, clock.now()))).status == 403
    assert (await api("POST", _tokens(app), {})).status == 401


@pytest.mark.parametrize("kind", ["classic", "fine_grained", "oauth"])
async def test_tokens_of_people(api: Api, shop: Repository, github: GitHub, kind: Any, clock: Clock) -> None:
    """Each kind of token has its form; one that has expired or was revoked gets 401."""
    token = github.person_token("grace", kind, expires=clock.now() + timedelta(days=1))
    assert (await api("GET", "/user", token=token)).json["login"] == "grace"
    clock.advance(86_401)
    assert (await api("GET", "/user", token=token)).status == 401
    other = github.person_token("grace", kind)
    github.revoke(other)
    assert (await api("GET", "/user", token=other)).status == 401


async def test_no_token_is_401_and_an_app_has_no_user(api: Api, shop: Repository, github: GitHub) -> None:
    """Repositories are private, so that a request without a token gets 401."""
    assert (await api("GET", "/repos/team/shop", Authorization="")).status == 401
    refused = await api("GET", "/user", token=github.installation_token(github.install_app()))
    assert refused.status == 403


async def test_labels_need_one_of_two_permissions(api: Api, opened: dict[str, Any], github: GitHub) -> None:
    """A token with `pull_requests` can label a pull request, but no issue."""
    issue = github.open_issue(github.repositories["team/shop"], "Sums are wrong")
    token = github.person_token("ada", "fine_grained", permissions={"pull_requests": "write"})
    statuses = [
        (await api("POST", f"/repos/team/shop/issues/{number}/labels", {"labels": ["x"]}, token=token)).status
        for number in (1, issue.number)
    ]
    assert statuses == [200, 403]
