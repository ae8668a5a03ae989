"""Files beside the chart: values for the official chart of NATS, and manifests for NACK."""

import copy
import json
import re
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # no types
import nats
import pytest
import yaml
from nats.js.api import ConsumerConfig, RePublish, StreamConfig

from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.identity import write_secret
from sandherd.bus.identity.deployment import Deployment
from sandherd.bus.identity.minter import Registrar
from sandherd.bus.provision import check
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.stack.broker import Broker
from sandherd.stack.nats import find_binary
from tests.integration.deploy.charts import ROOT, Json, helm
from tests.integration.deploy.custom import fits
from tests.patience import PATIENCE

MANIFESTS = [one for one in yaml.safe_load_all((ROOT / "deploy/nack/streams.yaml").read_text()) if one]
ACCOUNT: Json = yaml.safe_load((ROOT / "deploy/nack/account.yaml").read_text())
VALUES: Json = yaml.safe_load((ROOT / "deploy/nats/values.yaml").read_text())
CHART_KEYS: Json = {
    "config": {
        "cluster": {"enabled": None, "replicas": None},
        "jetstream": {
            "enabled": None,
            "fileStore": {"pvc": {"name": None, "size": None}, "maxSize": None},
            "memoryStore": {"enabled": None, "maxSize": None},
            "merge": None,
        },
        "resolver": {"enabled": None, "merge": None},
        "websocket": {"enabled": None, "merge": None},
        "monitor": {"enabled": None},
        "patch": None,
    },
    "container": {"image": {"tag": None}, "env": None, "merge": None, "patch": None},
    "reloader": {"merge": None},
    "promExporter": {"enabled": None, "port": None, "merge": None},
    "podTemplate": {"topologySpreadConstraints": None, "merge": None, "patch": None},
    "podDisruptionBudget": {"enabled": None},
    "natsBox": {"enabled": None},
}
"""The official chart's values that we set, from its values.yaml, as the chart can't be downloaded here."""


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker in operator mode with nothing created in it."""
    broker = Broker(tmp_path)
    broker.initialise()
    await broker.nats.start()
    yield broker
    await broker.kill()


def test_every_value_of_the_nats_chart_exists() -> None:
    """Every value exists: the chart would silently ignore a misspelt one."""
    assert unknown(VALUES, CHART_KEYS) == []


def unknown(values: Json, known: Json, where: str = "") -> list[str]:
    found = [f"{where}{key}" for key in values if key not in known]
    for key, below in known.items():
        if isinstance(below, dict) and key in values:
            found += unknown(values[key], below, f"{where}{key}.")
    return found


def test_accounts_are_merged_into_the_nats_chart(tmp_path: Path) -> None:
    """The command documented in the file works for any token; other values stay."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: nats\nversion: 1.0.0\n")
    (tmp_path / "templates/all.yaml").write_text("{{ toYaml .Values }}\n")
    accounts = made(tmp_path)
    line = (ROOT / "deploy/nats/values.yaml").read_text()
    assert "-f DIR/nats/values.json" in line
    values = [
        "-f",
        str(ROOT / "deploy/nats/values.yaml"),
        "-f",
        str(tmp_path / "herd/nats/values.json"),
    ]
    done = helm("template", "nats", str(tmp_path), *values)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)["config"]
    assert config["merge"] == accounts
    assert config["patch"] == VALUES["config"]["patch"]


GUARD_IMAGE = "registry.example.org/team/sandherd/cli:9"
CONTAINER: Json = {
    "name": "nats",
    "image": "nats:2.15.1-alpine",
    "ports": [{"name": "monitor", "containerPort": 8222}],
    "startupProbe": {"httpGet": {"path": "/healthz", "port": "monitor"}, "initialDelaySeconds": 10},
    "readinessProbe": {"httpGet": {"path": "/healthz?js-server-only=true", "port": "monitor"}},
    "livenessProbe": {"httpGet": {"path": "/healthz?js-enabled-only=true", "port": "monitor"}},
    "volumeMounts": [{"name": "config", "mountPath": "/etc/nats-config"}],
}
"""The container of that chart before it is patched, as far as our patches concern it."""


def test_chart_accepts_the_pod_with_its_guard(tmp_path: Path) -> None:
    """The guard's image is set as documented; every patch has its place, every mount its volume."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: nats\nversion: 1.0.0\n")
    (tmp_path / "templates/all.yaml").write_text("{{ toYaml .Values }}\n")
    text = (ROOT / "deploy/nats/values.yaml").read_text()
    option = re.search(r"--set (podTemplate\S+)=\S+", text)
    assert option
    values = ["-f", str(ROOT / "deploy/nats/values.yaml"), "--set", f"{option[1]}={GUARD_IMAGE}"]
    done = helm("template", "nats", str(tmp_path), *values)
    assert done.returncode == 0, done.stderr
    given = yaml.safe_load(done.stdout)
    volumes = [{"name": "config", "configMap": {"name": "nats"}}]
    container = patched(CONTAINER, given["container"]["patch"])
    spec = {"containers": [container], "volumes": volumes, **given["podTemplate"]["merge"]["spec"]}
    pod = patched({"spec": spec}, given["podTemplate"]["patch"])
    assert [one["image"] for one in pod["spec"]["containers"]] == ["nats:2.15.1-alpine", GUARD_IMAGE]
    pvc = given["config"]["jetstream"]["fileStore"]["pvc"]["name"]
    known = {volume["name"] for volume in pod["spec"]["volumes"]} | {pvc}
    assert {mount["name"] for one in pod["spec"]["containers"] for mount in one["volumeMounts"]} == known
    check_pod(pod["spec"], pvc)


def check_pod(spec: Json, pvc: str) -> None:
    """Check that the oldest supported cluster, and the newest with known schemas, know every field."""
    claim = {"metadata": {"name": pvc}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    whole = {"metadata": {"labels": {"app": "nats"}}, "spec": spec}
    selector = {"matchLabels": {"app": "nats"}}
    item = {"serviceName": "nats", "selector": selector, "template": whole, "volumeClaimTemplates": [claim]}
    for version in ("1.29", "1.37"):
        kubernetes_validate.validate(
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "nats"}, "spec": item},
            version,
            strict=True,
        )


def patched(document: Json, patches: list[Json]) -> Json:
    """Apply a patch by RFC 6902, with the operations that our values use. Raises `KeyError` for a missing path."""
    whole: Json = copy.deepcopy(document)
    for patch in patches:
        *parents, last = patch["path"].removeprefix("/").split("/")
        place: Any = whole
        for name in parents:
            place = place[name]
        if last == "-":
            place.append(patch["value"])
        else:
            assert last in place, patch["path"]
            place[last] = patch["value"]
    return whole


def made(folder: Path) -> Json:
    Deployment(folder / "herd").make(["default"], int(time.time()))
    accounts: Json = json.loads((folder / "herd/nats/accounts.json").read_text())
    return accounts


def test_server_accepts_the_charts_configuration(tmp_path: Path) -> None:
    """The real server accepts the configuration as the chart merges it, with the accounts."""
    given = VALUES["config"]
    size = int(given["jetstream"]["fileStore"]["maxSize"].removesuffix("Gi")) * 1024**3
    config: Json = {
        "server_name": "nats-0",
        "port": 4222,
        "http_port": 8222,
        "websocket": {"port": 8080, "no_tls": True, **given["websocket"]["merge"]},
        "cluster": {"name": "nats", "port": 6222, "no_advertise": True, "routes": ["nats://nats-1.nats-headless:6222"]},
        "jetstream": {"store_dir": str(tmp_path / "data"), "max_file_store": size, **given["jetstream"]["merge"]},
        "resolver": {"dir": str(tmp_path / "resolver"), **given["resolver"]["merge"]},
        **made(tmp_path),
        **{one["path"].removeprefix("/"): one["value"] for one in given["patch"]},
    }
    file = tmp_path / "nats.conf"
    file.write_text(json.dumps(config))
    done = subprocess.run(
        [find_binary(), "-t", "-c", str(file)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    ours = json.loads((tmp_path / "herd/nats/nats.conf").read_text())
    same = ("write_deadline", "max_control_line", "ping_interval", "max_closed_clients")
    assert {key: config[key] for key in same} == {key: ours[key] for key in same}
    assert size >= ours["jetstream"]["max_file_store"]
    assert int(given["jetstream"]["fileStore"]["pvc"]["size"].removesuffix("Gi")) * 1024**3 > size


def test_nack_manifests_declare_every_stream_bucket_and_consumer() -> None:
    """Each stream, bucket and consumer is declared once, with existing fields, in an existing account."""
    for one in [*MANIFESTS, ACCOUNT]:
        fits(one)
    names = [one["spec"].get("name") or one["spec"]["durableName"] for one in MANIFESTS]
    declared = [stream.name for stream in STREAMS] + [bucket.stream for bucket in BUCKETS]
    assert sorted(names) == sorted(declared + [consumer.name for consumer in CONSUMERS])
    assert len({(one["kind"], one["metadata"]["name"]) for one in MANIFESTS}) == len(MANIFESTS)
    assert {one["spec"]["account"] for one in MANIFESTS} == {ACCOUNT["metadata"]["name"]}
    assert all(one["spec"]["preventDelete"] for one in MANIFESTS)
    assert {one["spec"]["replicas"] for one in MANIFESTS if one["kind"] == "Stream"} == {3}


async def test_nack_creates_what_the_services_expect(bare: Broker, tmp_path: Path) -> None:
    """On a real broker, created with the provisioner's credential, they lead to no service's problem."""
    file = tmp_path / "provisioner.creds"
    write_secret(file, Registrar(bare.identity).mint_stream_changer())
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
    """A stream by NACK's reference of the fields, on the only server here."""
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
