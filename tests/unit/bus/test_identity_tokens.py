"""Keys, tokens and credentials: what is made is what the tables say, and no hostile name gets in."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.auth.accounts import Account, imports
from sandherd.bus.auth.inboxes import inbox
from sandherd.bus.identity import HerdIdentity, Key, KeyKind, Minter, Registrar, SpawnerKeys, bearer, write_secret
from sandherd.bus.identity.keys import is_public_key, read_claims, sign_claims
from sandherd.bus.identity.material import _ROOT_KEYS, revocations
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import UnsafeNameError, safe_sandbox
from sandherd.contracts.subjects import Principal

P = Principal
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOSTILE = ["", "*", ">", "a.b", "a b", "A", "ä", "ab\n", "-a", "a" * 64, "sbx-*", "sbx-1.>", "sbx-ü", "\0", "sbx-1\n"]
KEY = Key.new(KeyKind.USER)


@pytest.fixture
def identity(tmp_path: Path) -> HerdIdentity:
    made = HerdIdentity(tmp_path / "identity")
    made.create(int(NOW.timestamp()))
    return made


@pytest.fixture
def minter(identity: HerdIdentity) -> Minter:
    return Minter(SpawnerKeys.read(identity.spawner), clock=lambda: NOW)


@pytest.mark.parametrize("name", [*HOSTILE, "spawner", "provisioner", "sbx-1-join"])
def test_sandbox_name_that_reaches_beyond_it_is_refused(minter: Minter, name: str) -> None:
    """Wildcards, dots, a service's name, and the name of another sandbox's joiner are refused at minting."""
    with pytest.raises(UnsafeNameError):
        minter.mint_joiner("p1", name, life=60)
    with pytest.raises(UnsafeNameError):
        minter.mint_worker("p1", name, KEY.public, life=60)


@pytest.mark.parametrize("project", [*HOSTILE, "fleet"])
def test_credential_is_for_one_project_only(identity: HerdIdentity, minter: Minter, project: str) -> None:
    """A hostile project, and the one that stands for all, are refused for sandboxes and clients."""
    with pytest.raises(UnsafeNameError):
        minter.mint_worker(project, "sbx-1", KEY.public, life=60)
    with pytest.raises(UnsafeNameError):
        minter.mint_joiner(project, "sbx-1", life=60)
    with pytest.raises(UnsafeNameError):
        Registrar(identity).mint_person(P.CLIENT, "ann", project=project)


@given(st.text(max_size=70))
def test_accepted_sandbox_name_is_one_token(name: str) -> None:
    """Any text is refused, or is one plain token that is no other's reply prefix."""
    try:
        found = safe_sandbox(name)
    except UnsafeNameError:
        return
    assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len(found) <= 63
    assert inbox(P.WORKER, found) not in {inbox(service, service) for service in P}


@given(st.from_regex(r"sbx-[a-z0-9-]{0,20}", fullmatch=True), st.from_regex(r"sbx-[a-z0-9-]{0,20}", fullmatch=True))
def test_inboxes_of_workers_and_joiners_never_meet(one: str, other: str) -> None:
    """The two kinds of reply prefix of any two sandboxes never meet."""
    for name in (one, other):
        try:
            safe_sandbox(name)
        except UnsafeNameError:
            return
    assert inbox(P.WORKER, one) != inbox(P.JOINER, other)


@pytest.mark.parametrize(
    "key",
    ["", "*", "U" * 56, KEY.public[:-1], KEY.public.lower(), KEY.seed, "ü" * 56],
    ids=["nothing", "wildcard", "no checksum", "cut", "lower case", "a seed", "no base 32"],  # keys differ in each run
)
def test_worker_is_minted_for_a_user_key_only(minter: Minter, key: str) -> None:
    """A text that is no user's public key is refused, with the field's name."""
    with pytest.raises(ContractError) as refused:
        minter.mint_worker("p1", "sbx-1", key, life=60)
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.INVALID_FIELD, "public_key")


@pytest.mark.parametrize("kind", [KeyKind.ACCOUNT, KeyKind.OPERATOR])
def test_key_of_another_kind_is_no_user_key(minter: Minter, kind: KeyKind) -> None:
    """An account's or operator's key is not made into a user."""
    with pytest.raises(ContractError):
        minter.mint_worker("p1", "sbx-1", Key.new(kind).public, life=60)


def test_worker_token_has_identity_and_expiry_only(minter: Minter) -> None:
    """Its rights are the template of the signing key: a token with its own would be refused by the broker."""
    token, expires = minter.mint_worker("p1", "sbx-1", KEY.public, life=3600)
    claims = read_claims(token)
    assert expires == NOW + timedelta(hours=1)
    assert (claims["sub"], claims["name"], claims["exp"]) == (KEY.public, "sbx-1", int(expires.timestamp()))
    assert set(claims["nats"]) == {"type", "version", "issuer_account", "tags"}
    who = bearer(token)
    assert (who.principal, who.project, who.inbox) == (P.WORKER, "p1", "_INBOX_sbx-1")


def test_joiner_credential_differs_from_its_workers(minter: Minter) -> None:
    """The joiner listens on a reply prefix of its own."""
    who = bearer(minter.mint_joiner("p1", "sbx-1", life=60))
    assert (who.principal, who.name, who.inbox) == (P.JOINER, "sbx-1", "_INBOX_sbx-1-join")


def test_clients_of_one_name_have_different_inboxes(identity: HerdIdentity) -> None:
    """Names of clients are free, so their reply prefix is derived from their key."""
    one, other = (bearer(Registrar(identity).mint_person(P.CLIENT, "ann", project="p1")) for _ in range(2))
    assert one.inbox != other.inbox
    assert one.inbox == f"_INBOX_{one.public_key}"


@pytest.mark.parametrize("role", [P.WORKER, P.JOINER, P.SPAWNER])
def test_registration_distinguishes_clients_and_services(identity: HerdIdentity, role: Principal) -> None:
    """The set-up's key signs no sandbox, and no client gets a service's rights."""
    with pytest.raises(ValueError, match="not a role of a client"):
        Registrar(identity).mint_person(role, "ann", project="p1")
    if role is not P.SPAWNER:
        with pytest.raises(ValueError, match="is not a service"):
            Registrar(identity).mint_service(role)


def test_identity_material_is_private_and_created_once(identity: HerdIdentity) -> None:
    """Directories are 0700, files 0600; a second run retains every key and token."""
    files = {path: path.read_text() for path in identity.directory.rglob("*") if path.is_file()}
    for path in identity.directory.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    identity.create(int(NOW.timestamp()) + 5)
    assert files == {path: path.read_text() for path in identity.directory.rglob("*") if path.is_file()}


def test_spawner_has_neither_the_operators_nor_the_clients_key(identity: HerdIdentity) -> None:
    """The spawner's directory permits minting sandboxes and signing the account's next token."""
    held = {path.read_text().strip() for path in identity.spawner.glob("*.nk")}
    root_seeds = {identity.root_key(name).seed for name in _ROOT_KEYS}
    assert not held & root_seeds


def test_unfinished_set_up_is_completed(tmp_path: Path) -> None:
    """A set-up that was killed between keys and tokens continues with the same keys."""
    first = HerdIdentity(tmp_path)
    first.create(1)
    operator = first.root_key("operator").public
    (tmp_path / "broker" / "operator.jwt").unlink()
    first.create(2)
    assert read_claims(first.tokens(None, 3).operator)["sub"] == operator


def test_account_is_signed_again_only_when_its_rights_differ(identity: HerdIdentity) -> None:
    """The broker's newer token, with its revocations, is retained; an upgrade carries them over."""
    account = identity.root_key("sandboxes").public
    keys = SpawnerKeys.read(identity.spawner)
    held = sign_claims({**keys.account, "nats": {**keys.account["nats"], "revocations": {"U1": 9}}}, KEY, 5)
    assert identity.tokens(held, 10).accounts[account] == held
    (identity.spawner / "account.json").write_text("{}")
    renewed = identity.tokens(held, 10).accounts[account]
    assert renewed != held
    assert revocations(renewed) == {"U1": 9}


def test_secret_is_written_atomically(tmp_path: Path) -> None:
    """A file left by a killed writer is no obstacle, and a secret was never readable by others."""
    path = tmp_path / "made" / "secret"
    write_secret(path, "one")
    path.with_name(".secret.new").write_text("half")
    write_secret(path, "two")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("two", 0o600)
    assert [found.name for found in path.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "eyJ9.e30.x", "-----BEGIN NATS USER JWT-----\nx\n------END"])
def test_invalid_credential_raises(text: str) -> None:
    """A broken file or a foreign token raises `ValueError`, and nothing else."""
    with pytest.raises(ValueError, match=r"not a (JWT|credential)"):
        bearer(text)


def test_key_equals_its_seed_and_has_no_secret_repr() -> None:
    """A key made of a seed is the same key; its representation holds no secret; a broken seed is refused."""
    again = Key.from_seed(KEY.seed + "\n")
    assert again == KEY
    assert KEY.seed not in repr(KEY)
    assert is_public_key(KEY.public, KeyKind.USER)
    with pytest.raises(ValueError, match="not an nkey seed"):
        Key.from_seed("SUAB")


def test_no_account_imports_what_it_exports() -> None:
    """The broker ignores imports that form a cycle, and says so nowhere."""
    keys = {account: account.value for account in Account}
    imported = {(one, entry["account"], entry["subject"]) for one in Account for entry in imports(one, keys)}
    assert not {entry for entry in imported if (entry[1], entry[0].value, entry[2]) in imported}
