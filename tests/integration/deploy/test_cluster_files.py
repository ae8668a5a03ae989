"""What stands beside the chart: values for the official chart of NATS, and manifests for NACK."""

import json
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml
from nats.js.api import ConsumerConfig, RePublish, StreamConfig

from sandherd.bus.identity import write_secret
from sandherd.bus.identity.deployment import Deployment
from sandherd.bus.identity.minting import Registrar
from sandherd.bus.permissions import SERVICES
from sandherd.bus.provision import check
from sandherd.bus.setting_up import for_provisioner
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.stack.broker import Broker
from sandherd.stack.nats import find_binary
from tests.integration.deploy.charts import ROOT, Json, helm
from tests.integration.deploy.custom import fits

MANIFESTS = [one for one in yaml.safe_load_all((ROOT / "deploy/nack/streams.yaml").read_text()) if one]
ACCOUNT: Json = yaml.safe_load((ROOT / "deploy/nack/account.yaml").read_text())
VALUES: Json = yaml.safe_load((ROOT / "deploy/nats/values.yaml").read_text())
CHART_KEYS: Json = {
    "config": {
        "cluster": {"enabled": None, "replicas": None},
        "jetstream": {
            "enabled": None,
            "fileStore": {"pvc": {"size": None}, "maxSize": None},
            "memoryStore": {"enabled": None, "maxSize": None},
            "merge": None,
        },
        "resolver": {"enabled": None, "merge": None},
        "websocket": {"enabled": None},
        "monitor": {"enabled": None},
        "patch": None,
    },
    "container": {"image": {"tag": None}, "env": None, "merge": None},
    "reloader": {"merge": None},
    "promExporter": {"enabled": None, "port": None, "merge": None},
    "podTemplate": {"topologySpreadConstraints": None, "merge": None},
    "podDisruptionBudget": {"enabled": None},
    "natsBox": {"enabled": None},
}
"""Values that the official chart knows, of those that we give; read in its values.yaml, as it can't be fetched here."""


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker in operator mode with nothing made in it."""
    broker = Broker(tmp_path)
    broker.initialise()
    await broker.nats.start()
    yield broker
    await broker.kill()


def test_every_value_of_nats_is_one_that_its_chart_knows() -> None:
    """A misspelt one would be ignored without a word."""
    assert unknown(VALUES, CHART_KEYS) == []


def unknown(values: Json, known: Json, where: str = "") -> list[str]:
    found = [f"{where}{key}" for key in values if key not in known]
    for key, below in known.items():
        if isinstance(below, dict) and key in values:
            found += unknown(values[key], below, f"{where}{key}.")
    return found


def test_the_accounts_go_into_the_chart_of_nats(tmp_path: Path) -> None:
    """By the command that stands in the file, whatever a token looks like; what else is set there stays."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: nats\nversion: 1.0.0\n")
    (tmp_path / "templates/all.yaml").write_text("{{ toYaml .Values }}\n")
    accounts = made(tmp_path)
    line = (ROOT / "deploy/nats/values.yaml").read_text()
    assert '--set-json "config.merge=$(cat DIR/nats/accounts.json)"' in line
    values = [
        "-f",
        str(ROOT / "deploy/nats/values.yaml"),
        "--set-json",
        f"config.merge={json.dumps(accounts, indent=2)}",
    ]
    done = helm("template", "nats", str(tmp_path), *values)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)["config"]
    assert config["merge"] == accounts
    assert config["patch"] == VALUES["config"]["patch"]


def made(folder: Path) -> Json:
    Deployment(folder / "herd").make(["default"], int(time.time()))
    accounts: Json = json.loads((folder / "herd/nats/accounts.json").read_text())
    return accounts


def test_a_server_takes_that_configuration(tmp_path: Path) -> None:
    """Put together as that chart does it, with the accounts: the real server finds nothing wrong in it."""
    given = VALUES["config"]
    size = int(given["jetstream"]["fileStore"]["maxSize"].removesuffix("Gi")) * 1024**3
    config: Json = {
        "server_name": "nats-0",
        "port": 4222,
        "http_port": 8222,
        "websocket": {"port": 8080, "no_tls": True},
        "cluster": {"name": "nats", "port": 6222, "no_advertise": True, "routes": ["nats://nats-1.nats-headless:6222"]},
        "jetstream": {"store_dir": str(tmp_path / "data"), "max_file_store": size, **given["jetstream"]["merge"]},
        "resolver": {"dir": str(tmp_path / "resolver"), **given["resolver"]["merge"]},
        **made(tmp_path),
        **{one["path"].removeprefix("/"): one["value"] for one in given["patch"]},
    }
    file = tmp_path / "nats.conf"
    file.write_text(json.dumps(config))
    done = subprocess.run(
        [find_binary(), "-t", "-c", str(file)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    ours = json.loads((tmp_path / "herd/nats/nats.conf").read_text())
    assert {key: config[key] for key in ("write_deadline", "max_control_line", "ping_interval")} == {
        key: ours[key] for key in ("write_deadline", "max_control_line", "ping_interval")
    }
    assert size >= ours["jetstream"]["max_file_store"]
    assert int(given["jetstream"]["fileStore"]["pvc"]["size"].removesuffix("Gi")) * 1024**3 > size


def test_nack_is_told_of_everything_that_is_declared() -> None:
    """Each stream, bucket and consumer, once, in fields that it has, in an account that is there."""
    for one in [*MANIFESTS, ACCOUNT]:
        fits(one)
    names = [one["spec"].get("name") or one["spec"]["durableName"] for one in MANIFESTS]
    declared = [stream.name for stream in STREAMS] + [bucket.stream for bucket in BUCKETS]
    assert sorted(names) == sorted(declared + [consumer.name for consumer in CONSUMERS])
    assert len({(one["kind"], one["metadata"]["name"]) for one in MANIFESTS}) == len(MANIFESTS)
    assert {one["spec"]["account"] for one in MANIFESTS} == {ACCOUNT["metadata"]["name"]}
    assert all(one["spec"]["preventDelete"] for one in MANIFESTS)
    assert {one["spec"]["replicas"] for one in MANIFESTS if one["kind"] == "Stream"} == {3}


async def test_what_nack_makes_is_what_the_services_look_for(bare: Broker, tmp_path: Path) -> None:
    """Made on a real broker as NACK does, with the provisioner's credential: no service finds anything wrong."""
    file = tmp_path / "provisioner.creds"
    write_secret(file, Registrar(bare.identity).mint_provisioner(None, for_provisioner()))
    client = await nats.connect(bare.url, user_credentials=str(file))
    try:
        js = client.jetstream()
        for one in MANIFESTS:
            spec = one["spec"]
            if one["kind"] == "Stream":
                await js.add_stream(stream(spec))
            else:
                await js.add_consumer(spec["streamName"], consumer(spec))
    finally:
        await client.close()
    for service in SERVICES:
        async with bare.bus(service) as bus:
            assert await check(bus.js, service) == []


def stream(spec: Json) -> StreamConfig:
    """By NACK's reference of the fields; on the one server that there is here."""
    again = spec.get("republish")
    return StreamConfig(
        name=spec["name"],
        description=spec["description"],
        subjects=spec["subjects"],
        retention=spec["retention"],
        discard=spec["discard"],
        discard_new_per_subject=spec.get("discardPerSubject", False),
        storage=spec["storage"],
        max_age=seconds(spec.get("maxAge")),
        max_bytes=spec["maxBytes"],
        max_msgs_per_subject=spec["maxMsgsPerSubject"],
        duplicate_window=seconds(spec["duplicateWindow"]),
        num_replicas=1,
        allow_direct=spec["allowDirect"],
        allow_rollup_hdrs=spec.get("allowRollup", False),
        allow_msg_ttl=spec.get("allowMsgTtl"),
        subject_delete_marker_ttl=seconds(spec.get("subjectDeleteMarkerTtl")) or None,
        deny_delete=spec.get("denyDelete", False),
        republish=RePublish(src=again["source"], dest=again["destination"]) if again else None,
    )


def consumer(spec: Json) -> ConsumerConfig:
    return ConsumerConfig(
        name=spec["durableName"],
        durable_name=spec["durableName"],
        deliver_policy=spec["deliverPolicy"],
        ack_policy=spec["ackPolicy"],
        ack_wait=seconds(spec["ackWait"]),
        max_deliver=spec["maxDeliver"],
        max_ack_pending=spec["maxAckPending"],
        filter_subjects=spec["filterSubjects"],
    )


def seconds(text: Any) -> float:
    return float(str(text).removesuffix("s")) if text else 0
