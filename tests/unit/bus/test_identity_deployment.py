"""The folder of a deployment: created completely, idempotently, and with least privilege for each part."""

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandherd.bus.auth.permissions import SERVICES, Permissions
from sandherd.bus.auth.setup_permissions import WATCHER_CREDENTIALS, SetupOutcome
from sandherd.bus.identity import Registrar, SpawnerKeys, bearer, credentials_text, write_secret
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.deployment import CREDENTIALS, Deployment, Ports
from sandherd.bus.identity.keys import Key, read_claims, sign_claims
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.subjects import Principal

NOW = 1_795_000_000
FOLDERS = {
    "identity/root", "identity/broker", "identity/spawner", "nats", "database", "creds/operator", "creds/provisioner",
    "creds/store-guard",
    *(f"creds/{service}" for service in SERVICES),
}  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    found = Deployment(tmp_path / "herd")
    assert set(found.make(["default"], NOW).values()) == {SetupOutcome.CREATED}
    return found


def files(directory: Path) -> Iterator[tuple[str, bytes]]:
    return ((str(file.relative_to(directory)), file.read_bytes()) for file in directory.rglob("*") if file.is_file())


def test_deployment_has_exactly_the_needed_files(made: Deployment) -> None:
    """Keys, a credential for each service, the provisioner, the operator and a client, the broker's, a password."""
    found = {str(Path(name).parent) for name, _ in files(made.directory)}
    assert found == FOLDERS | {"creds/client-default"}
    for name in (*SERVICES, Principal.OPERATOR):
        assert bearer((made.directory / "creds" / name / CREDENTIALS).read_text()).principal is name
    SpawnerKeys.read(made.directory / "identity" / "spawner")


@pytest.mark.parametrize("content", [b"", b"cut", b"\xff\xfe"])
def test_damaged_credentials_are_created_again(made: Deployment, content: bytes) -> None:
    """Those of services, clients, the provisioner and the guard of the stores."""
    paths = [path for path in (made.directory / "creds").rglob("*") if path.is_file()]
    for path in paths:
        path.write_bytes(content)
    made.make(["default"], NOW)
    assert [path for path in paths if not path.read_bytes().startswith(b"-----BEGIN")] == []


def test_second_run_changes_nothing(made: Deployment) -> None:
    """Every file is unchanged, byte for byte; a day later only the provisioner's expired credential is renewed."""
    before = dict(files(made.directory))
    assert set(made.make(["default"], NOW + 1700).values()) == {SetupOutcome.UNCHANGED}
    assert dict(files(made.directory)) == before
    later = made.make(["default"], NOW + 86_400)
    assert {folder for folder, did in later.items() if did is not SetupOutcome.UNCHANGED} == {"creds/provisioner"}
    after = dict(files(made.directory))
    assert {name for name in before if after[name] != before[name]} == {f"creds/provisioner/{CREDENTIALS}"}


def test_further_project_adds_its_client_only(made: Deployment) -> None:
    """One folder is added; a project that is not named again keeps its client."""
    before = dict(files(made.directory))
    did = made.make(["web"], NOW)
    assert {folder for folder, what in did.items() if what is not SetupOutcome.UNCHANGED} == {"creds/client-web"}
    after = dict(files(made.directory))
    assert {name: after[name] for name in before} == before
    assert bearer((made.directory / "creds/client-web" / CREDENTIALS).read_text()).project == "web"


def test_rights_of_an_older_version_are_updated(made: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential with other rights is minted again, for that holder alone; no key changes."""
    path = made.directory / "creds" / "monitor" / CREDENTIALS
    older = Deployment(made.directory)
    path.unlink()
    monkeypatch.setattr("sandherd.bus.identity.minter.for_service", lambda _: Permissions(publish=(), subscribe=()))
    older.make([], NOW)
    monkeypatch.undo()
    keys, seed = dict(files(made.directory / "identity")), parts_of(path.read_text())[1]
    did = made.make([], NOW)
    assert {folder for folder, what in did.items() if what is not SetupOutcome.UNCHANGED} == {"creds/monitor"}
    assert dict(files(made.directory / "identity")) == keys
    assert parts_of(path.read_text())[1] == seed  # the ids of a service's events are derived from it


@pytest.mark.parametrize("file", [CREDENTIALS, WATCHER_CREDENTIALS])
def test_store_guard_credential_of_another_key_is_renewed(made: Deployment, tmp_path: Path, file: str) -> None:
    """A credential of another herd, or of a key no longer trusted, is replaced, and no other file."""
    other = Deployment(tmp_path / "other")
    other.make([], NOW)
    path = made.directory / "creds/store-guard" / file
    write_secret(path, (other.directory / "creds/store-guard" / file).read_text())
    before = dict(files(made.directory))
    did = made.make([], NOW)
    assert {folder for folder, what in did.items() if what is not SetupOutcome.UNCHANGED} == {"creds/store-guard"}
    after = dict(files(made.directory))
    assert {name for name in after if after[name] != before[name]} == {f"creds/store-guard/{file}"}


@pytest.mark.parametrize(
    ("file", "account", "signing"),
    [(CREDENTIALS, "herd", "streams-signing"), (WATCHER_CREDENTIALS, "system", "system-signing")],
)
def test_store_guard_credential_of_another_account_is_renewed(
    made: Deployment, file: str, account: str, signing: str
) -> None:
    """A credential for the streams' or the system account with the same permissions is replaced."""
    path = made.directory / "creds/store-guard" / file
    token, seed = parts_of(path.read_text())
    held = read_claims(token)
    moved = held | {"nats": held["nats"] | {"issuer_account": made.identity.root_key(account).public}}
    write_secret(path, credentials_text(sign_claims(moved, made.identity.root_key(signing), NOW), seed))
    assert made.make([], NOW)["creds/store-guard"] is SetupOutcome.CHANGED
    renewed = read_claims(parts_of(path.read_text())[0])
    assert renewed["nats"]["issuer_account"] == made.identity.root_key("store-guard").public


def test_identity_from_before_the_store_guard_is_updated(made: Deployment) -> None:
    """The account, the system account's export and both credentials are added; no other key and credential changes."""
    identity, before = made.identity, dict(files(made.directory))
    system = sign_claims(
        {"sub": identity.root_key("system").public, "name": "SYS", "nats": {"type": "account", "version": 2}},
        Key.read(identity.spawner / "operator-signing.nk"),
        NOW,
    )
    write_secret(identity.broker / "system.jwt", system)
    for name in ("root/store-guard.nk", "root/store-guard.json", "broker/store-guard.jwt", "root/system.json"):
        (identity.directory / name).unlink()
    shutil.rmtree(made.directory / "creds/store-guard")
    made.make([], NOW)
    after = dict(files(made.directory))
    assert {name for name in before if name.endswith(".nk") and before[name] != after[name]} == {
        "identity/root/store-guard.nk"
    }
    assert {name for name in before if name.startswith("creds/") and before[name] != after[name]} == {
        f"creds/store-guard/{file}" for file in (CREDENTIALS, WATCHER_CREDENTIALS)
    }
    preloaded = json.loads(after["nats/accounts.json"])["resolver_preload"]
    assert read_claims(preloaded[identity.root_key("system").public])["nats"]["exports"]
    assert identity.root_key("store-guard").public in preloaded


def test_only_the_spawner_is_in_the_accounts_of_streams_and_system(made: Deployment) -> None:
    """No other folder of a deployment holds one: inside an account the server checks no reply subject."""
    trusted = {made.identity.root_key(name).public for name in ("herd", "system")}
    folders = set()
    for name, content in files(made.directory):
        if name.endswith(".creds"):
            token, _ = parts_of(content.decode())
            if read_claims(token)["nats"]["issuer_account"] in trusted:
                folders.add(name.rpartition("/")[0])
    assert folders == {"creds/spawner", "identity/spawner"}


def test_expiring_service_credential_is_renewed(made: Deployment) -> None:
    """`sandherd doctor` names this remedy for a service; a client's limited life is intended, and stays."""
    service, person = (made.directory / "creds" / name / CREDENTIALS for name in ("monitor", "client-default"))
    token, seed = parts_of(service.read_text())
    limited = sign_claims(read_claims(token) | {"exp": NOW + 60}, made.identity.root_key("services"), NOW)
    write_secret(service, credentials_text(limited, seed))
    registrar = Registrar(made.identity)
    write_secret(person, registrar.mint_person(Principal.CLIENT, "client-default", project="default", life=60))
    did = made.make([], NOW)
    assert {folder for folder, what in did.items() if what is not SetupOutcome.UNCHANGED} == {"creds/monitor"}
    assert bearer(service.read_text()).expires_at is None


def test_secret_files_are_readable_by_their_owner_only(made: Deployment) -> None:
    """Every file but the broker's configuration is closed to others, and so is its folder."""
    for path in made.directory.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if "nats" in path.relative_to(made.directory).parts:
            assert mode == (0o755 if path.is_dir() else 0o644)
        elif path.is_file():
            assert (mode, stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


def test_broker_configuration_contains_no_secret(made: Deployment) -> None:
    """No seed and no password of the folder is in the broker's files; so it needs no secret store."""
    secrets = [
        line
        for name, content in files(made.directory)
        if not name.startswith("nats/")
        for line in content.decode().splitlines()
        if line.startswith("S") and len(line) == 58  # an nkey's seed
    ]
    secrets.append((made.directory / "database" / "password").read_text())
    assert len(secrets) > 10
    for _, content in files(made.directory / "nats"):
        assert not any(secret in content.decode() for secret in secrets)


def test_broker_configuration_has_ports_data_folder_and_trust(tmp_path: Path) -> None:
    """Ports and folder are as configured; a chart's three `merge` members equal those of the whole file."""
    made = Deployment(tmp_path / "herd", data="/srv/nats", ports=Ports(nats=1, websocket=2, monitor=3))
    made.make([], NOW)
    config = json.loads((tmp_path / "herd/nats/nats.conf").read_text())
    assert (config["port"], config["websocket"]["port"], config["http"]) == (1, 2, "127.0.0.1:3")
    assert "http_port" not in config, "whoever reaches the broker could ask it who is connected, and what they hear"
    assert config["resolver"]["dir"] == "/srv/nats/jwt"
    assert config["jetstream"]["store_dir"] == "/srv/nats/jetstream"
    trust = json.loads((tmp_path / "herd/nats/accounts.json").read_text())
    assert trust == {name: config[name] for name in ("operator", "system_account", "resolver_preload")}
    names = {read_claims(token)["name"] for token in trust["resolver_preload"].values()}
    assert names == {
        "SYS",
        "HERD",
        "EVENT_INGEST",
        "MONITOR",
        "MESSAGE_RELAY",
        "GATEWAY",
        "PROVISIONER",
        "PEOPLE",
        "SANDBOXES",
    } | {"STORE_GUARD"}


def test_provisioner_credential_creates_streams_for_an_hour(made: Deployment) -> None:
    """The credential only creates and inspects streams; it may change them with `changes`, until the next `make`."""
    path = made.directory / "creds/provisioner" / CREDENTIALS
    created, changed = {"STREAM.INFO", "STREAM.CREATE", "CONSUMER.INFO"}, {"STREAM.UPDATE", "CONSUMER.CREATE"}
    for changes in (False, True, False):
        made.make([], NOW, changes=changes)
        claims = read_claims(parts_of(path.read_text())[0])
        allowed = claims["nats"]["pub"]["allow"]
        verbs = {".".join(subject.partition(".API.")[2].split(".")[:2]) for subject in allowed}
        assert verbs == (created | changed if changes else created)
        assert not any("*" in subject for subject in allowed)
        assert claims["exp"] == NOW + 3600


def test_provisioner_credential_without_expiry_is_replaced(made: Deployment) -> None:
    """One with exactly the permissions of this version is replaced too."""
    path = made.directory / "creds/provisioner" / CREDENTIALS
    token, seed = parts_of(path.read_text())
    held = {name: value for name, value in read_claims(token).items() if name != "exp"}
    write_secret(path, credentials_text(sign_claims(held, made.identity.root_key("services"), NOW), seed))
    assert made.make([], NOW)["creds/provisioner"] is SetupOutcome.CHANGED
    assert bearer(path.read_text()).expires_at is not None


def test_hostile_project_name_is_refused(tmp_path: Path) -> None:
    """A name with a wildcard or a path creates no file."""
    for name in ("*", "../x", "fleet"):
        with pytest.raises(UnsafeNameError):
            Deployment(tmp_path / "herd").make([name], NOW)
        assert not (tmp_path / "x").exists()


def test_interrupted_creation_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure at any file, a second run creates the rest and retains the existing keys."""
    real = write_secret
    for step in range(1, 9):
        made = Deployment(tmp_path / str(step))
        left = iter(range(step))

        def cut(path: Path, text: str, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise OSError("cut off")
            real(path, text)

        for module in ("deployment", "credential_files", "material"):
            monkeypatch.setattr(f"sandherd.bus.identity.{module}.write_secret", cut)
        with pytest.raises(OSError, match="cut off"):
            made.make(["default"], NOW)
        monkeypatch.undo()
        keys = {name: text for name, text in files(made.directory) if name.endswith(".nk")}
        made.make(["default"], NOW)
        assert {str(Path(name).parent) for name, _ in files(made.directory)} == FOLDERS | {"creds/client-default"}
        assert {name: text for name, text in files(made.directory) if name in keys} == keys
