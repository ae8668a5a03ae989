"""The user that an ID token identifies, and the user's roles: the checks of OpenID Connect Core 3.1.3.7. Pure.

Only signatures by asymmetric keys are accepted. A token is refused if it is unsigned, or signed with a public text as
the symmetric key.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from gateway.access_tokens import ROLE_RANKS
from gateway.oidc.flow import SignInError
from sandherd.contracts.records import AccessRole

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
    "EdDSA",
)
LEEWAY: Final = 60
"""Maximum difference between the clocks of the provider and of the gateway, in seconds."""
_EMAIL_ADDRESS: Final = re.compile(r"[^\s@\x00-\x1f\x7f]{1,64}@[^\s@\x00-\x1f\x7f]{1,128}")


class IdentityError(SignInError):
    """The provider's response identifies no user."""

    reason = "identity"


class UnknownKeyError(IdentityError):
    """An ID token is signed by none of the keys. The provider may have added a key after the keys were read."""


@dataclass(frozen=True)
class OidcIdentity:
    """A user, and their groups."""

    user: str
    groups: frozenset[str]


def identity_of(
    id_token: str, keys: KeySet, *, issuer: str, client_id: str, nonce: str, groups_claim: str, now: datetime
) -> OidcIdentity:
    """The user of a valid ID token. Raises `IdentityError`; `UnknownKeyError` if none of the keys has signed it."""
    try:
        claims = jwt.decode(id_token, keys, algorithms=list(ALGORITHMS)).claims
        _claim_rules(issuer, client_id, nonce, now).validate(claims)
    except (InvalidKeyIdError, BadSignatureError) as error:
        raise UnknownKeyError("the ID token is signed by an unknown key") from error
    except JoseError as error:
        raise IdentityError(f"the ID token is invalid: {error.error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise IdentityError(f"the ID token is invalid: {type(error).__name__}") from error
    audience = claims["aud"]
    has_several_audiences = isinstance(audience, list) and len(audience) > 1
    if claims.get("azp", None if has_several_audiences else client_id) != client_id:
        raise IdentityError("the ID token is for another client")
    return OidcIdentity(_user(claims), _groups(claims.get(groups_claim)))


def _claim_rules(issuer: str, client_id: str, nonce: str, now: datetime) -> jwt.JWTClaimsRegistry:
    return jwt.JWTClaimsRegistry(
        now=int(now.timestamp()),
        leeway=LEEWAY,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": client_id},
        nonce={"essential": True, "value": nonce},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    )


def _user(claims: Mapping[str, Any]) -> str:
    """The verified e-mail address, or else `oidc:` and the subject: no access token has such a name."""
    address = claims.get("email")
    if isinstance(address, str) and claims.get("email_verified") is True and _EMAIL_ADDRESS.fullmatch(address):
        return address
    return "oidc:" + "".join(character for character in claims["sub"] if character.isprintable())[:150]


def _groups(claim: Any) -> frozenset[str]:
    if isinstance(claim, str):
        return frozenset({claim})
    return frozenset(group for group in claim if isinstance(group, str)) if isinstance(claim, list) else frozenset()


def roles_of(grants: Iterable[str], groups: frozenset[str]) -> dict[str, AccessRole]:
    """The highest role of a user in each project. `grants` are those of the settings, `group=project:role`."""
    roles: dict[str, AccessRole] = {}
    for grant in grants:
        group, _, permitted = grant.rpartition("=")
        project, _, text = permitted.partition(":")
        role = cast("AccessRole", text)
        if group in groups and (project not in roles or ROLE_RANKS[role] > ROLE_RANKS[roles[project]]):
            roles[project] = role
    return roles
