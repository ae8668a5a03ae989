"""The claims of the operator, of accounts and of users. Pure. `keys.sign_claims` makes tokens of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sandherd.bus.auth.accounts import Account, exports, imports
from sandherd.bus.auth.health_subjects import HEALTH
from sandherd.bus.auth.permissions import JOINER_PAYLOAD, WORKER_PAYLOAD, Permissions, joiner_template, worker_template
from sandherd.bus.identity.capacity import SUBSCRIPTIONS, Capacity
from sandherd.contracts.subjects import Principal

Claims = dict[str, Any]

_VERSION: Final = 2
"""The version of the format of NATS's claims."""
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT_LIMITS: Final = {**_UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": 0}
_UNLIMITED_STORAGE: Final = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
_WORKER_SUBSCRIPTIONS: Final = 16
"""Maximum number of subscriptions of a worker: its inbox, deliveries, the requests that it handles, and a reserve."""
CLAIMS_UPDATE: Final = "$SYS.REQ.CLAIMS.UPDATE"
"""The request that gives servers with a full resolver the new JWT of an account."""
CLAIMS_INBOX: Final = "_INBOX_spawner-claims"
CONNECTIONS: Final = "$SYS.REQ.SERVER.PING.CONNZ"
"""The request to which every server of a cluster replies with its connections and their amounts of sent data."""
KICK: Final = "$SYS.REQ.SERVER.{server}.KICK"
"""The request to one server to close a connection."""
CONNECTIONS_INBOX: Final = "_INBOX_spawner-connections"


def operator(public_key: str, signing_key: str, system_account: str) -> Claims:
    """The operator. Only `signing_key` signs accounts' JWTs, so the operator's main key may be stored offline."""
    nats = {
        "type": "operator",
        "version": _VERSION,
        "signing_keys": [signing_key],
        "system_account": system_account,
        "strict_signing_key_usage": True,
    }
    return {"sub": public_key, "name": "sandherd", "nats": nats}


def system_account(public_key: str, signing_key: str) -> Claims:
    """The account of the broker's system subjects. It exports only the request for the health of servers."""
    nats = {
        "type": "account",
        "version": _VERSION,
        "limits": _ACCOUNT_LIMITS,
        "signing_keys": [signing_key],
        "exports": [{"name": HEALTH, "subject": HEALTH, "type": "service", "response_type": "Stream"}],
    }
    return {"sub": public_key, "name": "SYS", "nats": nats}


def herd_account(keys: Mapping[Account, str], herd_key: str, capacity: Capacity) -> Claims:
    """The account of the streams, the buckets and the spawner. `herd_key` signs its users only."""
    return _account(Account.HERD, keys, {**_limits(Account.HERD, capacity), **_UNLIMITED_STORAGE}, [herd_key])


def service_account(account: Account, keys: Mapping[Account, str], services_key: str, capacity: Capacity) -> Claims:
    """The account of one service."""
    return _account(account, keys, _limits(account, capacity), [services_key])


def store_guard_account(keys: Mapping[Account, str], system: str, services_key: str, capacity: Capacity) -> Claims:
    """The account of `store-guard`, which checks whether nats-server stores messages, and the health of servers.

    `system` is the public key of the system account. The users are not in the system account, where the reply to a
    health request with the reply subject `$JS.API.ACCOUNT.PURGE.<account>` would delete all streams of an account.
    """
    account = service_account(Account.STORE_GUARD, keys, services_key, capacity)
    account["nats"]["imports"].append({"name": HEALTH, "subject": HEALTH, "type": "service", "account": system})
    return account


def people_account(keys: Mapping[Account, str], people_key: str, capacity: Capacity) -> Claims:
    """The account of clients, subscribers and operators."""
    return _account(Account.PEOPLE, keys, _limits(Account.PEOPLE, capacity), [people_key])


def sandboxes_account(keys: Mapping[Account, str], worker_key: str, joiner_key: str, capacity: Capacity) -> Claims:
    """The account of sandboxes. The keys that sign workers and joiners have their permissions as templates."""
    scopes = [
        _scope(worker_key, Principal.WORKER, worker_template(), WORKER_PAYLOAD, _WORKER_SUBSCRIPTIONS),
        _scope(joiner_key, Principal.JOINER, joiner_template(), JOINER_PAYLOAD, 2),
    ]
    return _account(Account.SANDBOXES, keys, _limits(Account.SANDBOXES, capacity), scopes)


def _limits(account: Account, capacity: Capacity) -> Claims:
    """Maximum connections of the whole account, and maximum subscriptions of each of its connections."""
    return {**_ACCOUNT_LIMITS, "conn": capacity.of(account), "subs": SUBSCRIPTIONS[account]}


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
    """The account with revocations: by public key, the Unix second until which tokens issued for it are revoked."""
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
    """A user. Without `permissions` it has the permissions in the template of the signing key.

    `expires` is a Unix second; without it the token does not expire.
    """
    tags = [f"principal:{principal}", *([f"project:{project}"] if project else [])]
    nats: Claims = {"type": "user", "version": _VERSION, "issuer_account": account, "tags": tags}
    if permissions is not None:
        nats |= {**_UNLIMITED, **permissions.claims()}
    return {"sub": public_key, "name": name, "nats": nats} | ({"exp": expires} if expires is not None else {})


def claims_pusher(public_key: str, system_account_key: str) -> Claims:
    """A user of the system account for the spawner, which may only push new JWTs of accounts to the broker."""
    allowed = Permissions(publish=(CLAIMS_UPDATE,), subscribe=(f"{CLAIMS_INBOX}.>",))
    return user(
        public_key,
        name="spawner-claims",
        account=system_account_key,
        principal=Principal.SPAWNER,
        permissions=allowed,
    )


def connection_watcher(public_key: str, system_account_key: str) -> Claims:
    """A user of the system account for the spawner, which may only list and close connections."""
    allowed = Permissions(publish=(CONNECTIONS, KICK.format(server="*")), subscribe=(f"{CONNECTIONS_INBOX}.>",))
    return user(
        public_key,
        name="spawner-connections",
        account=system_account_key,
        principal=Principal.SPAWNER,
        permissions=allowed,
    )


def _scope(key: str, role: Principal, permissions: Permissions, payload: int, subscriptions: int) -> Claims:
    limits = {"subs": subscriptions, "data": -1, "payload": payload}
    template = {**permissions.claims(), **limits, "allowed_connection_types": ["STANDARD", "WEBSOCKET"]}
    return {"kind": "user_scope", "key": key, "role": role.value, "template": template}
