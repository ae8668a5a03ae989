"""The folder of a deployment: all of it at once, the same again, and for each part no more than is its own."""

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandherd.bus.identity import Registrar, SpawnerKeys, bearer, credentials_text, write_secret
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.deployment import CREDENTIALS, Deployment, Ports
from sandherd.bus.identity.keys import Key, read_claims, sign_claims
from sandherd.bus.permissions import SERVICES, Permissions
from sandherd.bus.setup_permissions import WATCHER_CREDENTIALS, Did
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
    assert set(found.make(["default"], NOW).values()) == {Did.MADE}
    return found


def files(directory: Path) -> Iterator[tuple[str, bytes]]:
    return ((str(file.relative_to(directory)), file.read_bytes()) for file in directory.rglob("*") if file.is_file())


def test_it_is_all_that_a_deployment_needs_and_nothing_else(made: Deployment) -> None:
    """Keys, a credential for each service, the provisioner, the operator and a client, the broker's, a password."""
    found = {str(Path(name).parent) for name, _ in files(made.directory)}
    assert found == FOLDERS | {"creds/client-default"}
    for name in (*SERVICES, Principal.OPERATOR):
        assert bearer((made.directory / "creds" / name / CREDENTIALS).read_text()).principal is name
    SpawnerKeys.read(made.directory / "identity" / "spawner")


def test_again_nothing_happens(made: Deployment) -> None:
    """Every file is what it was, byte for byte; a day later too, but for the provisioner's expired credential."""
    before = dict(files(made.directory))
    assert set(made.make(["default"], NOW + 1700).values()) == {Did.KEPT}
    assert dict(files(made.directory)) == before
    later = made.make(["default"], NOW + 86_400)
    assert {folder for folder, did in later.items() if did is not Did.KEPT} == {"creds/provisioner"}
    after = dict(files(made.directory))
    assert {name for name in before if after[name] != before[name]} == {f"creds/provisioner/{CREDENTIALS}"}


def test_a_further_project_adds_its_client_and_leaves_the_rest(made: Deployment) -> None:
    """One folder more; and a project that is not named again keeps its client."""
    before = dict(files(made.directory))
    did = made.make(["web"], NOW)
    assert {folder for folder, what in did.items() if what is not Did.KEPT} == {"creds/client-web"}
    after = dict(files(made.directory))
    assert {name: after[name] for name in before} == before
    assert bearer((made.directory / "creds/client-web" / CREDENTIALS).read_text()).project == "web"


def test_rights_of_an_older_version_are_brought_up_to_date(made: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential with other rights is minted anew, for that holder alone; no key is, not its own either."""
    path = made.directory / "creds" / "monitor" / CREDENTIALS
    older = Deployment(made.directory)
    path.unlink()
    monkeypatch.setattr("sandherd.bus.identity.minting.for_service", lambda _: Permissions(publish=(), subscribe=()))
    older.make([], NOW)
    monkeypatch.undo()
    keys, seed = dict(files(made.directory / "identity")), parts_of(path.read_text())[1]
    did = made.make([], NOW)
    assert {folder for folder, what in did.items() if what is not Did.KEPT} == {"creds/monitor"}
    assert dict(files(made.directory / "identity")) == keys
    assert parts_of(path.read_text())[1] == seed  # the ids of a service's events are derived from it


@pytest.mark.parametrize("file", [CREDENTIALS, WATCHER_CREDENTIALS])
def test_a_store_guards_credential_of_another_key_is_made_anew(made: Deployment, tmp_path: Path, file: str) -> None:
    """Of another herd, or signed by a key that is not trusted any more: that file alone is replaced."""
    other = Deployment(tmp_path / "other")
    other.make([], NOW)
    path = made.directory / "creds/store-guard" / file
    write_secret(path, (other.directory / "creds/store-guard" / file).read_text())
    before = dict(files(made.directory))
    did = made.make([], NOW)
    assert {folder for folder, what in did.items() if what is not Did.KEPT} == {"creds/store-guard"}
    after = dict(files(made.directory))
    assert {name for name in after if after[name] != before[name]} == {f"creds/store-guard/{file}"}


@pytest.mark.parametrize(
    ("file", "account", "signing"),
    [(CREDENTIALS, "herd", "streams-signing"), (WATCHER_CREDENTIALS, "system", "system-signing")],
)
def test_a_store_guards_credential_of_another_account_is_made_anew(
    made: Deployment, file: str, account: str, signing: str
) -> None:
    """With the same permissions in the account of the streams, or the system account, of this herd."""
    path = made.directory / "creds/store-guard" / file
    token, seed = parts_of(path.read_text())
    held = read_claims(token)
    moved = held | {"nats": held["nats"] | {"issuer_account": made.identity.root_key(account).public}}
    write_secret(path, credentials_text(sign_claims(moved, made.identity.root_key(signing), NOW), seed))
    assert made.make([], NOW)["creds/store-guard"] is Did.CHANGED
    renewed = read_claims(parts_of(path.read_text())[0])
    assert renewed["nats"]["issuer_account"] == made.identity.root_key("store-guard").public


def test_an_identity_from_before_the_store_guard_is_brought_up_to_date(made: Deployment) -> None:
    """It gets the account, the system account's export and both credentials; no other key and credential changes."""
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


def test_a_services_credential_that_runs_out_is_made_anew(made: Deployment) -> None:
    """`sandherd doctor` names this as the remedy for one; a person's is given its life on purpose, and keeps it."""
    service, person = (made.directory / "creds" / name / CREDENTIALS for name in ("monitor", "client-default"))
    token, seed = parts_of(service.read_text())
    limited = sign_claims(read_claims(token) | {"exp": NOW + 60}, made.identity.root_key("services"), NOW)
    write_secret(service, credentials_text(limited, seed))
    registrar = Registrar(made.identity)
    write_secret(person, registrar.mint_person(Principal.CLIENT, "client-default", project="default", life=60))
    did = made.make([], NOW)
    assert {folder for folder, what in did.items() if what is not Did.KEPT} == {"creds/monitor"}
    assert bearer(service.read_text()).expires_at is None


def test_only_its_owner_reads_what_is_secret(made: Deployment) -> None:
    """Every file but the broker's configuration is closed to others, and so is its folder."""
    for path in made.directory.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if "nats" in path.relative_to(made.directory).parts:
            assert mode == (0o755 if path.is_dir() else 0o644)
        elif path.is_file():
            assert (mode, stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


def test_the_brokers_configuration_holds_no_secret(made: Deployment) -> None:
    """No seed and no password of the folder stands in what the broker is given; so it needs no secret store."""
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


def test_the_broker_is_told_where_and_whom_to_trust(tmp_path: Path) -> None:
    """Ports and folder are as given; the three members for a chart's `merge` are those of the whole configuration."""
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
        "PROVISIONER",
        "PEOPLE",
        "SANDBOXES",
    } | {"STORE_GUARD"}


def test_the_provisioners_credential_creates_streams_for_an_hour(made: Deployment) -> None:
    """It only creates and inspects streams; only with `changes` does it change them, and the next `make` ends that."""
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


def test_a_provisioners_credential_that_never_expires_is_replaced(made: Deployment) -> None:
    """Also one with exactly the permissions of this version."""
    path = made.directory / "creds/provisioner" / CREDENTIALS
    token, seed = parts_of(path.read_text())
    held = {name: value for name, value in read_claims(token).items() if name != "exp"}
    write_secret(path, credentials_text(sign_claims(held, made.identity.root_key("services"), NOW), seed))
    assert made.make([], NOW)["creds/provisioner"] is Did.CHANGED
    assert bearer(path.read_text()).expires_at is not None


def test_a_hostile_project_makes_nothing(tmp_path: Path) -> None:
    """A name with a wildcard or a path is refused."""
    for name in ("*", "../x", "fleet"):
        with pytest.raises(UnsafeNameError):
            Deployment(tmp_path / "herd").make([name], NOW)
        assert not (tmp_path / "x").exists()


def test_what_was_cut_off_half_way_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an end at any file, doing it again makes the whole, with the keys that were there."""
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
