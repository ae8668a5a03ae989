"""A deployment set up by commands only: a real server with the written configuration, and real clients."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamConfig

from sandherd.bus.api_subjects import API, API_FROM_OUTSIDE
from sandherd.bus.auth.account_names import api_of
from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.auth.setup_permissions import INBOX
from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity import Key, KeyKind, Registrar, bearer, credentials_text
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.deployment import CREDENTIALS, Deployment
from sandherd.bus.identity.keys import read_claims, sign_claims
from sandherd.bus.identity.material import PUSHED_ACCOUNTS
from sandherd.bus.identity.revocation import RevocationList
from sandherd.bus.provision import check, create_missing
from sandherd.bus.table_consumers import create_consumers
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.settings import Settings
from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.nats import find_binary, free_port
from spawner.main import compose
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd


class Deployed:
    """A nats-server that was started with the files of `sandherd identity init`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.child = ChildProcess(
            ChildCommand(arguments=[find_binary(), "-c", str(folder / "herd/nats/nats.conf")], log=folder / "nats.log")
        )

    def command(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `sandherd …` with only this environment."""
        variables = {"PATH": os.environ["PATH"], "NATS_URL": self.url, "SANDHERD_HOME": str(self.folder / "home")}
        command = [str(preloaded_sandherd()), *words]
        return subprocess.run(
            command, env=variables | environ, capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    def init(self, *more: str) -> list[dict[str, str]]:
        """Run `sandherd identity init`, also repeatedly."""
        ports = ["--port", str(self.port), "--websocket-port", str(free_port()), "--monitor-port", str(free_port())]
        data = ["--data", str(self.folder / "data")]
        done = self.command("identity", "init", str(self.folder / "herd"), *data, *ports, *more, "-o", "json")
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    def provision(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `sandherd provision` with its credential."""
        return self.command("provision", *words, SANDHERD_CREDENTIALS=str(self.creds("provisioner")))

    def creds(self, name: str) -> Path:
        """A holder's credentials file."""
        return self.folder / "herd/creds" / name / CREDENTIALS

    def bus(self, name: str) -> AbstractAsyncContextManager[Bus]:
        """A connection with this credential."""
        who = bearer(self.creds(name).read_text())
        inbox = INBOX if name == "provisioner" else who.inbox
        outside = name == "provisioner"
        identity, api = (
            ConnectionIdentity.file(self.creds(name)),
            API_FROM_OUTSIDE if outside else api_of(who.principal),
        )
        return Bus.open(self.url, name=name, identity=identity, inbox=inbox, connect_timeout=10, api=api)

    def admin(self) -> AbstractAsyncContextManager[Bus]:
        """A connection with the whole JetStream API, as a user with the root keys has it."""
        token, seed = parts_of(Registrar(Deployment(self.folder / "herd").identity).mint_stream_admin())
        return Bus.open(
            self.url,
            name="t",
            identity=ConnectionIdentity.renewing(lambda: token, seed),
            inbox=INBOX,
            connect_timeout=10,
            api=API,
        )


@pytest.fixture
def deployed() -> Iterator[Deployed]:
    folder = Path(tempfile.mkdtemp(prefix="deployed-"))
    found = Deployed(folder)
    try:
        found.init()
        found.child.start()
        yield found
    finally:
        asyncio.run(found.child.kill())
        shutil.rmtree(folder, ignore_errors=True)


async def test_broker_is_set_up_by_two_commands(deployed: Deployed) -> None:
    """After `identity init`, `provision` and the start of a spawner each service reports no problem."""
    done = deployed.provision("-o", "json")
    assert done.returncode == 0, done.stderr
    states = {row["thing"]: row["state"] for row in json.loads(done.stdout)}
    assert {state for thing, state in states.items() if thing.startswith("stream ")} == {"made"}
    assert {state for thing, state in states.items() if thing.startswith("consumer ")} == {"pending"}
    assert len(states) == len(STREAMS) + len(BUCKETS) + len(CONSUMERS)
    async with deployed.bus("spawner") as bus:
        await create_consumers(bus)
        assert bus.violations == 0
    for service in SERVICES:
        async with deployed.bus(service) as bus:
            assert await check(bus.js, service) == []
            assert bus.violations == 0


async def test_different_stream_is_changed_with_the_root_keys_only(deployed: Deployed) -> None:
    """The provisioner's credential names the stream and the remedies, each of which changes it; it changes nothing."""
    deployed.provision()
    keys = ["--identity", str(deployed.folder / "herd/identity")]
    for allow_changes in (False, True):
        async with deployed.admin() as bus:
            found = (await bus.js.stream_info("DEAD")).config
            await bus.js.update_stream(found.evolve(max_bytes=1024 * 1024))
        if allow_changes:
            deployed.init("--allow-changes")
        else:
            refused = deployed.provision()
            assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
            assert "stream DEAD (max_bytes)" in refused.stderr
            assert "sandherd provision --identity DIR" in refused.stderr
            async with deployed.admin() as bus:
                assert (await bus.js.stream_info("DEAD")).config.max_bytes == 1024 * 1024
        states = json.loads(deployed.provision("-o", "json", *([] if allow_changes else keys)).stdout)
        streams = [row for row in states if row["state"] != "kept" and row["thing"].startswith("stream")]
        assert streams == [{"thing": "stream DEAD", "state": "changed"}]


def test_expired_or_unlimited_provisioner_credential_is_refused(deployed: Deployed) -> None:
    """One line names the remedy, before the broker is contacted."""
    path = deployed.creds("provisioner")
    token, seed = parts_of(path.read_text())
    signing = Deployment(deployed.folder / "herd").identity.root_key("services")
    for changed, expected_text in (({"exp": 1}, "expired at 1970-01-01 00:00 UTC"), ({"exp": 0}, "never expires")):
        path.write_text(credentials_text(sign_claims(read_claims(token) | changed, signing, 1), seed))
        done = deployed.provision()
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert expected_text in done.stderr
        assert "identity init" in done.stderr


async def test_account_of_a_new_version_is_pushed_to_a_running_broker(deployed: Deployed) -> None:
    """After `init` of another version, `identity push` permits what the old account did not."""
    older = deployed.folder / "herd/identity/spawner/people.json"
    claims = json.loads(older.read_text())
    older.write_text(json.dumps({**claims, "nats": {**claims["nats"], "imports": []}}))
    before = json.loads((deployed.folder / "herd/nats/accounts.json").read_text())["resolver_preload"]
    made = read_claims(before[claims["sub"]])["iat"]
    while int(time.time()) <= made:  # tokens differ only by the second of their creation
        await asyncio.sleep(0.05)
    changed = {row["path"].rpartition("/herd/")[2] for row in deployed.init() if row["state"] != "kept"}
    assert changed == {"identity/broker", "identity/spawner", "nats"}
    done = deployed.command("identity", "push", str(deployed.folder / "herd"), "-o", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [{"account": name} for name in PUSHED_ACCOUNTS])
    key = claims["sub"]
    held = (deployed.folder / "data/jwt" / f"{key}.jwt").read_text()
    pushed = json.loads((deployed.folder / "herd/nats/accounts.json").read_text())["resolver_preload"][key]
    assert held == pushed != before[key]


@pytest.mark.parametrize(
    ("holder", "expected_text"),
    [("monitor", "not the provisioner's"), (None, "no credential"), ("nobody", "no such file")],
)
async def test_provision_with_another_credential_is_refused(
    deployed: Deployed, holder: str | None, expected_text: str
) -> None:
    """The status is 1, one line names the needed credential, and nothing was created."""
    own: dict[str, Any] = {"SANDHERD_CREDENTIALS": str(deployed.creds(holder))} if holder else {}
    done = deployed.command("provision", **own)
    assert (done.returncode, done.stdout) == (1, "")
    assert expected_text in done.stderr
    assert done.stderr.count("\n") == 1
    async with deployed.bus("provisioner") as bus:
        assert (await bus.js.add_stream(StreamConfig(name="DEAD", subjects=["sandherd.v1.dead.>"]))).did_create


async def test_unreachable_or_foreign_broker_is_reported_in_one_line(deployed: Deployed) -> None:
    """There is no traceback; the status is 1 after the configured wait."""
    credentials = {"SANDHERD_CREDENTIALS": str(deployed.creds("provisioner"))}
    unreachable = deployed.command("provision", "--wait", "0", **credentials | {"NATS_URL": "nats://127.0.0.1:9"})
    other = deployed.folder / "other"
    assert deployed.command("identity", "init", str(other)).returncode == 0
    stranger = deployed.command(
        "provision", "--wait", "0", SANDHERD_CREDENTIALS=str(other / "creds/provisioner" / CREDENTIALS)
    )
    for done in (unreachable, stranger):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "with this identity" in done.stderr


def test_unusable_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    """A file in its place, an invalid key and an invalid project lead to status 1 or 2, and the remedy."""
    (tmp_path / "file").touch()
    found = Deployed(tmp_path)
    done = found.command("identity", "init", str(tmp_path / "file"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    found.init()
    (tmp_path / "herd/identity/root/people.nk").write_text("nonsense")
    broken = found.command("identity", "init", str(tmp_path / "herd"))
    assert broken.returncode == 1
    assert "broken key" in broken.stderr
    hostile = found.command("identity", "init", str(tmp_path / "new"), "--project", "*")
    assert hostile.returncode == 2
    assert not (tmp_path / "new").exists()


async def test_starting_spawner_pushes_the_sandbox_account(deployed: Deployed) -> None:
    """After an upgrade the account has the permissions of its keys, and all earlier revocations."""
    deployed.provision()
    spawner, revoked, now = deployed.folder / "herd/identity/spawner", Key.new(KeyKind.USER).public, int(time.time())
    async with deployed.bus("spawner") as bus:
        await RevocationList.of(bus.js).change({revoked: now + 3600}, now)
    account = json.loads((spawner / "account.json").read_text())
    account["nats"]["limits"]["conn"] = 4711
    (spawner / "account.json").write_text(json.dumps(account))
    settings = Settings(
        nats_url=deployed.url, credentials=deployed.creds("spawner"), identity_dir=spawner, isolation="none",
        home=deployed.folder / "home",
    )  # fmt: skip
    held = deployed.folder / "data/jwt" / f"{account['sub']}.jwt"
    async with compose(settings).running(), asyncio.timeout(PATIENCE):
        while (claims := claims_in(held)).get("limits", {}).get("conn") != 4711:
            await asyncio.sleep(0.05)
        async with deployed.bus("provisioner") as bus:  # and it has created the consumers, which no other program has
            assert {str(done.did) for done in await create_missing(bus.js)} == {"kept"}
    assert revoked in claims["revocations"]


def claims_in(path: Path) -> dict[str, Any]:
    """The claims in a token that the server stores; none while it writes the file."""
    try:
        return dict(read_claims(path.read_text())["nats"])
    except (FileNotFoundError, ValueError):
        return {}
