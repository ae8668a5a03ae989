"""The user of an ID token, and the refusals: each check of OpenID Connect, and each grant."""

import json
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey, KeySet, OctKey

from gateway.oidc.flow import SignInFlow, local_page
from gateway.oidc.identity import LEEWAY, IdentityError, UnknownKeyError, identity_of, roles_of
from gateway.oidc.provider import ProviderError, configuration_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = ECKey.generate_key("P-256", {"kid": "k1"})
KEYS = KeySet([KEY])
CLAIMS: dict[str, Any] = {
    "iss": "https://id.example",
    "aud": "sandherd",
    "nonce": "n",
    "sub": "u1",
    "iat": int(NOW.timestamp()),
    "exp": int(NOW.timestamp()) + 300,
    "groups": ["engineers", 7],
}


def signed(claims: dict[str, Any], key: ECKey = KEY, alg: str = "ES256") -> str:
    return jwt.encode({"alg": alg, "kid": str(key.kid)}, {k: v for k, v in claims.items() if v is not None}, key)


def identified(token: str, now: datetime = NOW) -> Any:
    return identity_of(
        token, KEYS, issuer="https://id.example", client_id="sandherd", nonce="n", groups_claim="groups", now=now
    )


def test_valid_token_names_its_user() -> None:
    """The user is the verified address, or else the subject, which no token's name equals. Groups are texts only."""
    found = identified(signed(CLAIMS))
    assert (found.user, found.groups) == ("oidc:u1", {"engineers"})
    verified = CLAIMS | {"email": "ada@example.com", "email_verified": True, "groups": "one"}
    assert identified(signed(verified)).user == "ada@example.com"
    assert identified(signed(verified | {"aud": ["sandherd"]})).groups == {"one"}
    for change in ({"email_verified": False}, {"email_verified": None}, {"email": "token:ci"}, {"email": "a@b\n"}):
        assert identified(signed(verified | change)).user == "oidc:u1"
    late = NOW + timedelta(seconds=300 + LEEWAY - 1)
    assert identified(signed(CLAIMS), late).user == "oidc:u1"


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "https://id.example/"},
        {"iss": None},
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": ["sandherd", "other"]},
        {"aud": ["sandherd", "other"], "azp": "other"},
        {"azp": "other"},
        {"nonce": "m"},
        {"nonce": None},
        {"sub": None},
        {"sub": 7},
        {"exp": None},
        {"exp": int(NOW.timestamp()) - LEEWAY - 1},
        {"iat": int(NOW.timestamp()) + LEEWAY + 1},
        {"nbf": int(NOW.timestamp()) + LEEWAY + 1},
    ],
    ids=str,
)
def test_token_for_another_purpose_is_refused(change: dict[str, Any]) -> None:
    """A token of another issuer, for another client, of another sign-in, or not valid now is refused."""
    with pytest.raises(IdentityError):
        identified(signed(CLAIMS | change))


def test_only_the_providers_signatures_count() -> None:
    """A token is refused if it is unsigned, signed with another key, or signed with a public key as a shared secret."""
    other = ECKey.generate_key("P-256", {"kid": "k1"})
    renamed = ECKey.generate_key("P-256", {"kid": "k2"})
    for key in (other, renamed):
        with pytest.raises(UnknownKeyError):
            identified(signed(CLAIMS, key))
    public = OctKey.import_key(json.dumps(KEY.as_dict(private=False)))
    parts: list[dict[str, Any]] = [{"alg": "none"}, CLAIMS]
    head, body = (urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    forged = [
        f"{head}.{body}.",
        jwt.encode({"alg": "HS256", "kid": "k1"}, CLAIMS, public, algorithms=["HS256"]),
        signed(CLAIMS)[:-4],
        "x",
        "",
        "a.b.c",
    ]
    for token in forged:
        with pytest.raises(IdentityError):
            identified(token)


def test_highest_role_of_all_groups_applies() -> None:
    """The highest role applies in each project separately; groups without a grant have no effect."""
    grants = ["a=p1:work", "b=p1:operate", "a=p2:read", "c=p3:operate", "x=y=p4:read"]
    assert roles_of(grants, frozenset({"a", "b"})) == {"p1": "operate", "p2": "read"}
    assert roles_of(grants, frozenset({"x"})) == {}
    assert roles_of(grants, frozenset()) == {}


def test_sign_in_is_bound_to_its_browser() -> None:
    """State, nonce and verifier differ for each; the state also binds the project and the page."""
    flow = SignInFlow.begin("p1", "/tasks?state=failed.x")
    assert SignInFlow.of_cookie(flow.cookie()) == flow
    assert len({flow.state, flow.nonce, flow.verifier, SignInFlow.begin("p1", None).state}) == 4
    assert flow.matches(flow.state)
    for other in (
        SignInFlow.begin("p1", flow.page),
        SignInFlow(flow.secret, "p2", flow.page),
        SignInFlow(flow.secret, "p1", "/"),
    ):
        assert not flow.matches(other.state)
    for cookie in ("", "a.b.c", flow.secret, f"{flow.secret}.p1", f"{flow.secret}.p1./.x"):
        assert SignInFlow.of_cookie(cookie) is None
    assert flow.secret not in flow.authorization_url("https://id.example/a", "c", "https://herd.example/b", ["openid"])


@pytest.mark.parametrize(
    "page",
    ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "", "/a\\b", "/a\nb", "/api/v1/tasks", None],
)
def test_no_sign_in_leads_to_another_site(page: str | None) -> None:
    """The browser is sent only to pages of the gateway itself."""
    assert local_page(page) == "/"
    assert local_page("/sandboxes/sbx-1?tab=diff") == "/sandboxes/sbx-1?tab=diff"


def test_configuration_of_another_issuer_is_refused() -> None:
    """A configuration of another issuer is refused, and so is one with an address without TLS."""
    document = {
        "issuer": "https://id.example",
        "authorization_endpoint": "https://id.example/a",
        "token_endpoint": "https://id.example/t",
        "jwks_uri": "https://keys.example/k",
    }
    assert configuration_of(document, "https://id.example").basic
    wrong: list[dict[str, Any]] = [
        {"issuer": "https://id.example/"},
        {"token_endpoint": "http://id.example/t"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
    ]
    for change in wrong:
        with pytest.raises(ProviderError):
            configuration_of(document | change, "https://id.example")


def test_token_chooses_neither_its_key_nor_what_it_is() -> None:
    """A key or its address in the token's own header is not used; an encrypted or extended token is refused."""
    own = ECKey.generate_key("P-256", {"kid": "own"})
    public = own.as_dict(private=False)
    header: dict[str, Any] = {"alg": "ES256", "kid": "own"}
    for more in ({"jwk": public}, {"jku": "https://evil.example/k"}, {"x5u": "https://evil.example/k"}, {"kid": "k1"}):
        with pytest.raises(IdentityError):
            identified(jwt.encode(header | more, CLAIMS, own))
    for name, value in (("crit", ["b64"]), ("b64", False)):
        head = _part({"alg": "ES256", "kid": "k1", name: value})
        with pytest.raises(IdentityError):
            identified(f"{head}.{signed(CLAIMS).partition('.')[2]}")
    encrypted = ".".join([_part({"alg": "dir", "enc": "A128GCM", "kid": "k1"}), "", "AAAA", "AAAA", "AAAA"])
    listed = jws.serialize_compact({"alg": "ES256", "kid": "k1"}, b"[1]", KEY)
    for token in (encrypted, listed, signed(CLAIMS).replace(".", "..", 1), "\ud800.a.b", f"{'A' * 100_000}.a.b"):
        with pytest.raises(IdentityError):
            identified(token)


def test_key_for_another_use_signs_no_token() -> None:
    """A provider also publishes keys for encryption. Such a key, or one of another algorithm, is not used."""
    uses: list[dict[str, Any]] = [{"use": "enc"}, {"key_ops": ["deriveKey"]}, {"alg": "ES384"}]
    for parameters in uses:
        key = ECKey.import_key(KEY.as_dict(private=False) | parameters)
        with pytest.raises(IdentityError):
            identity_of(
                signed(CLAIMS), KeySet([key]), issuer="https://id.example", client_id="sandherd", nonce="n",
                groups_claim="groups", now=NOW,
            )  # fmt: skip


def _part(document: dict[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()
