"""Event ids that a service derives from its credential, which only its replicas share."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.connection import ConnectionIdentity
from sandherd.bus.identity import HerdIdentity as Material
from sandherd.bus.identity import Key, KeyKind, Minter, Registrar, SpawnerKeys, credentials_text
from sandherd.contracts.subjects import Principal

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


def derived(identity: ConnectionIdentity) -> UUID:
    return identity.derived_ids().derive(AT, "fact")


def file_of(path: Path, text: str) -> ConnectionIdentity:
    path.write_text(text)
    return ConnectionIdentity.file(path)


def test_replicas_of_a_service_derive_the_same_key(tmp_path: Path) -> None:
    """Replicas derive the same key from copies of a file; another service, a client and a worker derive another."""
    herd = Material(tmp_path / "identity")
    herd.create(int(AT.timestamp()))
    registrar = Registrar(herd)
    text = registrar.mint_service(Principal.MONITOR)
    first, second = (file_of(tmp_path / f"{number}.creds", text) for number in (1, 2))
    assert derived(first) == derived(second)
    key = Key.new(KeyKind.USER)
    token, _ = Minter(SpawnerKeys.read(herd.spawner)).mint_worker("p1", "sbx-1", key.public, 60)
    texts = [registrar.mint_service(service) for service in SERVICES]
    texts += [registrar.mint_person(Principal.CLIENT, "ada", project="p1"), credentials_text(token, key.seed)]
    others = [file_of(tmp_path / f"other-{number}", text) for number, text in enumerate(texts)]
    found = {derived(one) for one in [first, ConnectionIdentity.anonymous(), *others]}
    assert len(found) == len(others) + 2


def test_renewed_credential_of_a_key_derives_the_same_ids(tmp_path: Path) -> None:
    """After `identity init` renews it with other permissions, an earlier event has the same id."""
    herd = Material(tmp_path / "identity")
    herd.create(int(AT.timestamp()))
    clock: Callable[[], datetime] = lambda: AT  # noqa: E731  # the type is the point
    key = Key.new(KeyKind.USER)
    before = file_of(tmp_path / "before", Registrar(herd).mint_service(Principal.SPAWNER, key))
    after = file_of(tmp_path / "after", Registrar(herd, clock).mint_service(Principal.SPAWNER, key))
    assert derived(before) == derived(after)
