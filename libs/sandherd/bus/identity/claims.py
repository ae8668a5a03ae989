"""What the tokens say: operator, accounts and users as claims. Pure; `keys.sign_claims` makes tokens of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sandherd.bus.accounts import Account, exports, imports
from sandherd.bus.permissions import (
    JOINER_PAYLOAD,
    WORKER_PAYLOAD,
    Permissions,
    joiner_template,
    worker_template,
)
from sandherd.contracts.subjects import Principal

Claims = dict[str, Any]

_VERSION: Final = 2
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT: Final = {**_UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
_STORED: Final = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
_WORKER_SUBSCRIPTIONS: Final = 16
"""Its inbox, deliveries and each request of the table that it answers, and some room."""
CLAIMS_UPDATE: Final = "$SYS.REQ.CLAIMS.UPDATE"
"""Where a full resolver takes a new account token."""
CLAIMS_INBOX: Final = "_INBOX_spawner-claims"
HEALTH: Final = "$SYS.REQ.SERVER.PING.HEALTHZ"
"""Where every server of a cluster says how it is."""
WATCHER_INBOX: Final = "_INBOX_watcher"


def operator(public_key: str, signing_key: str, system_account: str) -> Claims:
    """The operator, who signs with `signing_key` only: its first key may be kept off every machine."""
    nats = {
        "type": "operator",
        "version": _VERSION,
        "signing_keys": [signing_key],
        "system_account": system_account,
        "strict_signing_key_usage": True,
    }
    return {"sub": public_key, "name": "sandherd", "nats": nats}


def system_account(public_key: str, signing_key: str) -> Claims:
    """The account of the broker's own subjects."""
    nats = {"type": "account", "version": _VERSION, "limits": _ACCOUNT, "signing_keys": [signing_key]}
    return {"sub": public_key, "name": "SYS", "nats": nats}


def herd_account(keys: Mapping[Account, str], services_key: str) -> Claims:
    """The account of the services, the streams and the buckets."""
    return _account(Account.HERD, keys, {**_ACCOUNT, **_STORED}, [services_key])


def people_account(keys: Mapping[Account, str], people_key: str) -> Claims:
    """The account of clients and operators."""
    return _account(Account.PEOPLE, keys, _ACCOUNT, [people_key])


def sandboxes_account(keys: Mapping[Account, str], worker_key: str, joiner_key: str) -> Claims:
    """The account of sandboxes, with the whole permission of workers and joiners as templates."""
    scopes = [
        _scope(worker_key, Principal.WORKER, worker_template(), WORKER_PAYLOAD, _WORKER_SUBSCRIPTIONS),
        _scope(joiner_key, Principal.JOINER, joiner_template(), JOINER_PAYLOAD, 2),
    ]
    return _account(Account.SANDBOXES, keys, _ACCOUNT, scopes)


def _account(
    account: Account, keys: Mapping[Account, str], limits: Mapping[str, Any], signing_keys: Sequence[Any]
) -> Claims:
    nats = {
        "type": "account",
        "version": _VERSION,
        "limits": dict(limits),
        "default_permissions": {"pub": {}, "sub": {}},
        "signing_keys": list(signing_keys),
        "exports": exports(account),
        "imports": imports(account, keys),
    }
    return {"sub": keys[account], "name": account.value, "nats": nats}


def with_revocations(account: Claims, revoked: Mapping[str, int]) -> Claims:
    """The account with a list of revoked users: public key → the Unix second up to which its tokens are refused."""
    return {**account, "nats": {**account["nats"], "revocations": dict(revoked)}}


def user(
    public_key: str,
    *,
    name: str,
    account: str,
    principal: Principal,
    project: str | None = None,
    expires: int | None = None,
    permissions: Permissions | None = None,
) -> Claims:
    """A user. Without permissions its rights are the template of the scoped key that signs it.

    `expires` is a Unix second; without it the token does not expire.
    """
    tags = [f"principal:{principal}", *([f"project:{project}"] if project else [])]
    nats: Claims = {"type": "user", "version": _VERSION, "issuer_account": account, "tags": tags}
    if permissions is not None:
        nats |= {**_UNLIMITED, **permissions.claims()}
    return {"sub": public_key, "name": name, "nats": nats} | ({"exp": expires} if expires is not None else {})


def claims_pusher(public_key: str, system_account_key: str) -> Claims:
    """The spawner's user of the system account, who may do one thing: give the broker a new account token."""
    allowed = Permissions(publish=(CLAIMS_UPDATE,), subscribe=(f"{CLAIMS_INBOX}.>",))
    return user(
        public_key,
        name="spawner-claims",
        account=system_account_key,
        principal=Principal.SPAWNER,
        permissions=allowed,
    )


def watcher(public_key: str, system_account_key: str) -> Claims:
    """The local stack's user of the system account, who may do one thing: ask every server how it is."""
    allowed = Permissions(publish=(HEALTH,), subscribe=(f"{WATCHER_INBOX}.>",))
    return user(
        public_key,
        name="watcher",
        account=system_account_key,
        principal=Principal.OPERATOR,
        permissions=allowed,
    )


def _scope(key: str, role: Principal, permissions: Permissions, payload: int, subscriptions: int) -> Claims:
    limits = {"subs": subscriptions, "data": -1, "payload": payload}
    template = {**permissions.claims(), **limits, "allowed_connection_types": ["STANDARD", "WEBSOCKET"]}
    return {"kind": "user_scope", "key": key, "role": role.value, "template": template}
