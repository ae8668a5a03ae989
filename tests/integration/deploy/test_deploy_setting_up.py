"""A deployment set up by the commands alone: a real server with the configuration that they wrote, and real clients."""

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

from sandherd.bus.connection import Bus, Identity
from sandherd.bus.identity import Key, Kind, bearer
from sandherd.bus.identity.deployment import CREDENTIALS
from sandherd.bus.identity.keys import read_claims
from sandherd.bus.identity.revoking import RevocationList
from sandherd.bus.permissions import SERVICES
from sandherd.bus.provision import check
from sandherd.bus.setting_up import INBOX
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.settings import Settings
from sandherd.stack.child import Child, Command
from sandherd.stack.nats import find_binary, quiet_port
from spawner.main import compose
from tests.e2e.line import SANDHERD


class Deployed:
    """A nats-server that was started with what `sandherd identity init` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, quiet_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.child = Child(
            Command(arguments=[find_binary(), "-c", str(folder / "herd/nats/nats.conf")], log=folder / "nats.log")
        )

    def command(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """`sandherd …`, with no other environment than this."""
        told = {"PATH": os.environ["PATH"], "NATS_URL": self.url, "SANDHERD_HOME": str(self.folder / "home")}
        return subprocess.run(
            [str(SANDHERD), *words], env=told | environ, capture_output=True, text=True, check=False, timeout=60
        )

    def init(self) -> list[dict[str, str]]:
        """Make it, or make it once more."""
        ports = ["--port", str(self.port), "--websocket-port", str(quiet_port()), "--monitor-port", str(quiet_port())]
        data = ["--data", str(self.folder / "data")]
        done = self.command("identity", "init", str(self.folder / "herd"), *data, *ports, "-o", "json")
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    def provision(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`sandherd provision`, with its credential."""
        return self.command("provision", *words, SANDHERD_CREDENTIALS=str(self.creds("provisioner")))

    def creds(self, name: str) -> Path:
        """A holder's credentials file."""
        return self.folder / "herd/creds" / name / CREDENTIALS

    def bus(self, name: str) -> AbstractAsyncContextManager[Bus]:
        """A connection with that credential."""
        who = bearer(self.creds(name).read_text())
        inbox = INBOX if name == "provisioner" else who.inbox
        return Bus.open(self.url, name=name, identity=Identity.file(self.creds(name)), inbox=inbox, patience=10)


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


async def test_a_broker_is_set_up_by_two_commands(deployed: Deployed) -> None:
    """`identity init` and `provision` alone: every service finds with its own credential that all is well."""
    done = deployed.provision("-o", "json")
    assert done.returncode == 0, done.stderr
    states = {row["thing"]: row["state"] for row in json.loads(done.stdout)}
    assert set(states.values()) == {"made"}
    assert len(states) == len(STREAMS) + len(BUCKETS) + len(CONSUMERS)
    for service in SERVICES:
        async with deployed.bus(service) as bus:
            assert await check(bus.js, service) == []
            assert bus.violations == 0


async def test_again_it_keeps_what_is_there_and_mends_what_differs(deployed: Deployed) -> None:
    """What is as declared is kept; what somebody changed, or took away, is named, and only that."""
    deployed.provision()
    again = json.loads(deployed.provision("-o", "json").stdout)
    assert {row["state"] for row in again} == {"kept"}
    async with deployed.bus("provisioner") as bus:
        found = (await bus.js.stream_info("DEAD")).config
        await bus.js.update_stream(found.evolve(max_bytes=1024 * 1024))
    mended = json.loads(deployed.provision("-o", "json").stdout)
    assert [row for row in mended if row["state"] != "kept"] == [{"thing": "stream DEAD", "state": "changed"}]


@pytest.mark.parametrize(
    "subject", ["$JS.API.STREAM.DELETE.EVENTS", "$JS.API.STREAM.PURGE.EVENTS", "$JS.API.STREAM.MSG.GET.EVENTS"]
)
async def test_the_provisioners_credential_takes_nothing_away(deployed: Deployed, subject: str) -> None:
    """It lies in the deployment for good: the broker itself refuses to have anything deleted, emptied or read by it."""
    deployed.provision()
    async with deployed.bus("provisioner") as bus:
        await bus.client.publish(subject, b"{}")
        await bus.settle()
        assert bus.violations == 1
        assert (await bus.js.stream_info("EVENTS")).config.name == "EVENTS"


async def test_an_account_of_a_new_version_is_given_to_a_running_broker(deployed: Deployed) -> None:
    """After `init` of another version, `identity push` lets a service say what the old account had no way for."""
    older = deployed.folder / "herd/identity/root/people.json"
    claims = json.loads(older.read_text())
    older.write_text(json.dumps({**claims, "nats": {**claims["nats"], "imports": []}}))
    before = json.loads((deployed.folder / "herd/nats/accounts.json").read_text())["resolver_preload"]
    made = read_claims(before[claims["sub"]])["iat"]
    while int(time.time()) <= made:  # a token differs by the second that it was made in
        await asyncio.sleep(0.05)
    changed = {row["path"].rpartition("/herd/")[2] for row in deployed.init() if row["state"] != "kept"}
    assert changed == {"identity/broker", "identity/root", "nats"}
    done = deployed.command("identity", "push", str(deployed.folder / "herd"), "-o", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [{"account": "herd"}, {"account": "people"}])
    key = claims["sub"]
    held = (deployed.folder / "data/jwt" / f"{key}.jwt").read_text()
    pushed = json.loads((deployed.folder / "herd/nats/accounts.json").read_text())["resolver_preload"][key]
    assert held == pushed != before[key]


@pytest.mark.parametrize(
    ("holder", "says"),
    [("monitor", "not the provisioner's"), (None, "no credential"), ("nobody", "no credentials file")],
)
async def test_who_may_not_provision_is_told_whose_credential_it_takes(
    deployed: Deployed, holder: str | None, says: str
) -> None:
    """One line, exit status 1, and nothing was made."""
    own: dict[str, Any] = {"SANDHERD_CREDENTIALS": str(deployed.creds(holder))} if holder else {}
    done = deployed.command("provision", **own)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    async with deployed.bus("provisioner") as bus:
        assert (await bus.js.add_stream(StreamConfig(name="DEAD", subjects=["sandherd.v1.dead.>"]))).did_create


async def test_a_broker_that_is_away_or_of_another_identity_is_said_in_one_line(deployed: Deployed) -> None:
    """No traceback, exit status 1, after as long as was said."""
    credentials = {"SANDHERD_CREDENTIALS": str(deployed.creds("provisioner"))}
    away = deployed.command("provision", "--wait", "0", **credentials | {"NATS_URL": "nats://127.0.0.1:9"})
    other = deployed.folder / "other"
    assert deployed.command("identity", "init", str(other)).returncode == 0
    stranger = deployed.command(
        "provision", "--wait", "0", SANDHERD_CREDENTIALS=str(other / "creds/provisioner" / CREDENTIALS)
    )
    for done in (away, stranger):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "started with this identity" in done.stderr


def test_a_folder_that_cant_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    """A file in its place, a broken key, a hostile project: exit status 1 or 2, and the remedy."""
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


async def test_the_sandboxes_account_is_given_by_the_spawner_that_starts(deployed: Deployed) -> None:
    """With the rights that its keys say after an upgrade, and everything that was taken back before."""
    deployed.provision()
    spawner, revoked, now = deployed.folder / "herd/identity/spawner", Key.new(Kind.USER).public, int(time.time())
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
    async with compose(settings).running(), asyncio.timeout(20):
        while (claims := read_claims(held.read_text())["nats"])["limits"]["conn"] != 4711:
            await asyncio.sleep(0.05)
    assert revoked in claims["revocations"]
