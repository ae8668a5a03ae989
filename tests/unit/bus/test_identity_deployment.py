"""The folder of a deployment: all of it at once, the same again, and for each part no more than is its own."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandherd.bus.identity import Registrar, SpawnerKeys, bearer, credentials_text, write_secret
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.deployment import CREDENTIALS, Deployment, Ports
from sandherd.bus.identity.keys import read_claims, sign_claims
from sandherd.bus.permissions import SERVICES, Permissions
from sandherd.bus.setting_up import Did, for_provisioner
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.subjects import Principal

NOW = 1_795_000_000
FOLDERS = {
    "identity/root", "identity/broker", "identity/spawner", "nats", "database", "creds/operator", "creds/provisioner",
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
    """Every file is what it was, byte for byte, a day later too."""
    before = dict(files(made.directory))
    assert set(made.make(["default"], NOW + 86_400).values()) == {Did.KEPT}
    assert dict(files(made.directory)) == before


def test_a_further_project_adds_its_client_and_leaves_the_rest(made: Deployment) -> None:
    """One folder more; and a project that is not named again keeps its client."""
    before = dict(files(made.directory))
    did = made.make(["web"], NOW)
    assert {folder for folder, what in did.items() if what is not Did.KEPT} == {"creds/client-web"}
    after = dict(files(made.directory))
    assert {name: after[name] for name in before} == before
    assert bearer((made.directory / "creds/client-web" / CREDENTIALS).read_text()).project == "web"


def test_rights_of_an_older_version_are_brought_up_to_date(made: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential with other rights is minted anew, for that holder alone; no key is."""
    path = made.directory / "creds" / "monitor" / CREDENTIALS
    older = Deployment(made.directory)
    path.unlink()
    monkeypatch.setattr("sandherd.bus.identity.minting.for_service", lambda _: Permissions(publish=(), subscribe=()))
    older.make([], NOW)
    monkeypatch.undo()
    keys = dict(files(made.directory / "identity"))
    did = made.make([], NOW)
    assert {folder for folder, what in did.items() if what is not Did.KEPT} == {"creds/monitor"}
    assert dict(files(made.directory / "identity")) == keys


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
    assert names == {"SYS", "HERD", "PEOPLE", "SANDBOXES"}


def test_the_provisioner_may_make_and_change_and_nothing_else() -> None:
    """Its credential lies in a deployment for good: with it nothing is deleted, emptied, read or said."""
    allowed = for_provisioner()
    verbs = {subject.split(".")[2:4][0] + "." + subject.split(".")[3] for subject in allowed.publish}
    assert verbs == {"STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE", "CONSUMER.INFO", "CONSUMER.CREATE"}
    assert not any("*" in subject for subject in allowed.publish)


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

        for module in ("deployment", "holding", "material"):
            monkeypatch.setattr(f"sandherd.bus.identity.{module}.write_secret", cut)
        with pytest.raises(OSError, match="cut off"):
            made.make(["default"], NOW)
        monkeypatch.undo()
        keys = {name: text for name, text in files(made.directory) if name.endswith(".nk")}
        made.make(["default"], NOW)
        assert {str(Path(name).parent) for name, _ in files(made.directory)} == FOLDERS | {"creds/client-default"}
        assert {name: text for name, text in files(made.directory) if name in keys} == keys
