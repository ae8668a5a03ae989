"""What is installed beside the chart: values for the official chart of NATS, and streams for its controller, NACK."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import yaml
from chart import ROOT, Json, as_yaml
from nats.js.api import ConsumerConfig, StreamConfig

from sandherd.bus import stream_configs
from sandherd.bus.identity.serving import LIMITS, STORE_BYTES, keeping
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS, Consumer

_GIB: Final = 1024**3
_ROOM: Final = 1.25
"""A full stream still needs room for its indexes, and for what is being compacted."""
_STORE: Final = -(-STORE_BYTES // _GIB)
REPLICAS: Final = 3
_NATS_HEAD: Final = """\
# Made by `make docs` from docs/cluster.py and the code: values of the official chart of NATS (nats/nats, from 2.14 on).
# Three servers in operator mode. The operator and the accounts are those of `sandherd identity init DIR`:
#
#   helm upgrade --install nats nats/nats -n nats --create-namespace -f deploy/nats/values.yaml \\
#     --set-json "config.merge=$(cat DIR/nats/accounts.json)"
#
# For a try on a single node: --set config.cluster.enabled=false, and `nats.replicas: 1` in the values of our chart.
#
# The container store-guard writes to the streams and reads the server's health; by its verdict the probes of the
# server find one that answers and does not store. It runs our image, from your registry:
#
#   --set podTemplate.patch[0].value.image=registry.example.org/team/sandherd/cli:{version}
#
# and reads the Secret sandherd-store-guard in the namespace of the servers, made of DIR/creds/store-guard.
"""
_STATE: Final = "/run/store-guard"
_READ: Final = (
    f"state={_STATE}/state; read -r verdict < $state 2>/dev/null"
    " && [ $(( $(date +%s) - $(stat -c %Y $state) )) -lt 30 ] && [ $verdict = {verdict} ]"
)
"""Whether the guard published this verdict in the last 30 s."""
_STREAMS: Final = "/data/jetstream"
"""Where that chart mounts the volume of streams."""
_VOLUME: Final = "nats-js"
_NACK_HEAD: Final = """\
# Made by `make docs` from libs/sandherd/contracts/streams.py: what `sandherd provision` makes with the root keys, on
# three servers, for NACK. It needs the account of account.yaml in the same namespace, whose credential is accepted for
# an hour, NACK's control loop (jetstream.additionalArgs), and `setup.provision: false` in the values of our chart. A
# bucket is the stream that it is, whose fields NACK's KeyValue has not all. What is taken away here stays in the broker
# (preventDelete).
"""


def documents() -> dict[Path, str]:
    """Every file that is made, and what should stand in it."""
    return {
        ROOT / "deploy" / "nats" / "values.yaml": _NATS_HEAD.format(version=version("sandherd")) + as_yaml(nats()),
        ROOT / "deploy" / "nack" / "streams.yaml": _NACK_HEAD + "".join("---\n" + as_yaml(one) for one in nack()),
    }


# --- the official chart of NATS --------------------------------------------------------------------------------------


def nats() -> Json:
    """Values of that chart. `config.merge` is left to the accounts; ours are patches."""
    return {
        "config": _config(),
        "container": {
            "image": {"tag": _tag("nats")},
            # Four fifths of the limit below.
            "env": {"GOMEMLIMIT": "1638MiB"},
            "merge": {
                "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
                "securityContext": _confined(),
            },
            "patch": [
                *_probes(),
                {"op": "add", "path": "/volumeMounts/-", "value": _mount("store-guard", _STATE, writable=False)},
            ],
        },
        "reloader": {"merge": {"securityContext": _confined()}},
        "promExporter": {"enabled": True, "port": 7777, "merge": {"securityContext": _confined()}},
        "podTemplate": {
            "topologySpreadConstraints": {
                key: {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
                for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
            },
            "merge": {"spec": {"securityContext": _nobody(), "automountServiceAccountToken": False}},
            "patch": [
                {"op": "add", "path": "/spec/containers/-", "value": _store_guard()},
                {
                    "op": "add",
                    "path": "/spec/volumes/-",
                    "value": _volume("emptyDir", medium="Memory", sizeLimit="1Mi"),
                },
                {"op": "add", "path": "/spec/volumes/-", "value": _secret()},
            ],
        },
        "podDisruptionBudget": {"enabled": True},
        "natsBox": {"enabled": False},
    }


def _probes() -> Iterator[Json]:
    """Ready while it stores; alive unless the guard says that a restart helps. The streams may take long to recover."""
    period = {"periodSeconds": 5, "timeoutSeconds": 5}
    recovered = {"httpGet": {"path": "/healthz?js-enabled-only=true", "port": "monitor"}, **period}
    ready = {"exec": _shell(_READ.format(verdict="ok")), **period, "failureThreshold": 2}
    # Ends at once: the chart's preStop would have it leave slowly, and it stores nothing meanwhile.
    alive = {"exec": _shell(f"! {{ {_READ.format(verdict='restart')}; }}"), **period, "failureThreshold": 1}
    yield {"op": "replace", "path": "/startupProbe", "value": {**recovered, "failureThreshold": 180}}
    yield {"op": "replace", "path": "/readinessProbe", "value": ready}
    yield {"op": "replace", "path": "/livenessProbe", "value": {**alive, "terminationGracePeriodSeconds": 5}}


def _shell(script: str) -> Json:
    return {"command": ["/bin/sh", "-c", script]}


def _store_guard() -> Json:
    """The container beside each server that judges whether it stores."""
    program = ["/opt/sandherd/bin/dumb-init", "--", "/opt/sandherd/bin/python", "-m", "sandherd.stack.server_guard"]
    where = ["--server", "$(POD_NAME)", "--data", _STREAMS, "--state", f"{_STATE}/state", "--cluster"]
    return {
        "name": "store-guard",
        "image": f"sandherd/cli:{version('sandherd')}",
        "command": program,
        "args": ["--url", "nats://127.0.0.1:4222", *where],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": [
            _mount("store-guard", _STATE, writable=True),
            _mount("store-guard-credentials", "/run/sandherd", writable=False),
            _mount(_VOLUME, _STREAMS, writable=False),
        ],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": _confined(),
    }


def _mount(name: str, path: str, *, writable: bool) -> Json:
    return {"name": name, "mountPath": path, **({} if writable else {"readOnly": True})}


def _volume(kind: str, name: str = "store-guard", **given: Any) -> Json:
    return {"name": name, kind: given}


def _secret() -> Json:
    return _volume("secret", "store-guard-credentials", secretName="sandherd-store-guard", defaultMode=0o440)


def _tag(service: str) -> str:
    """The tag of an image, which docker-compose.yml names for all."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return str(compose["services"][service]["image"]).rpartition(":")[2]


def _config() -> Json:
    kept = keeping("", "")
    resolver = {key: value for key, value in kept["resolver"].items() if key != "dir"}
    jetstream = {key: value for key, value in kept["jetstream"].items() if key == "sync_interval"}
    return {
        "cluster": {"enabled": True, "replicas": REPLICAS},
        "jetstream": {
            "enabled": True,
            "fileStore": {
                "pvc": {"name": _VOLUME, "size": f"{-(-_STORE * _ROOM // 1):.0f}Gi"},
                "maxSize": f"{_STORE}Gi",
            },
            "memoryStore": {"enabled": True, "maxSize": "256Mi"},
            "merge": jetstream,
        },
        "resolver": {"enabled": True, "merge": resolver},
        "websocket": {"enabled": True},
        "monitor": {"enabled": True},
        "patch": [{"op": "add", "path": f"/{name}", "value": value} for name, value in LIMITS.items()],
    }


def _nobody() -> Json:
    whole = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
    return {**whole, "seccompProfile": {"type": "RuntimeDefault"}}


def _confined() -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


# --- NACK ------------------------------------------------------------------------------------------------------------


def nack() -> Iterator[Json]:
    """A manifest for each stream, for each bucket, and for each durable consumer."""
    for stream in STREAMS:
        yield _manifest("Stream", stream.name, _stream(stream_configs.stream_config(stream)))
    for bucket in BUCKETS:
        yield _manifest("Stream", bucket.stream, _stream(stream_configs.bucket_config(bucket)))
    for consumer in CONSUMERS:
        yield _manifest("Consumer", consumer.name, _consumer(consumer, stream_configs.consumer_config(consumer)))


def _manifest(kind: str, name: str, spec: Json) -> Json:
    said = {key: value for key, value in spec.items() if value is not None}
    metadata = {"name": name.lower().replace("_", "-")}
    whole = {**said, "preventDelete": True, "account": "sandherd"}
    return {"apiVersion": "jetstream.nats.io/v1beta2", "kind": kind, "metadata": metadata, "spec": whole}


def _stream(config: StreamConfig) -> Json:
    again = config.republish
    return {
        "name": config.name,
        "description": config.description,
        "subjects": config.subjects,
        "retention": _text(config.retention),
        "discard": _text(config.discard),
        "discardPerSubject": config.discard_new_per_subject or None,
        "storage": _text(config.storage),
        "maxAge": _seconds(config.max_age),
        "maxBytes": config.max_bytes,
        "maxMsgsPerSubject": config.max_msgs_per_subject,
        "duplicateWindow": _seconds(config.duplicate_window),
        "replicas": REPLICAS,
        "allowDirect": config.allow_direct,
        "allowRollup": config.allow_rollup_hdrs or None,
        "allowMsgTtl": config.allow_msg_ttl or None,
        "subjectDeleteMarkerTtl": _seconds(config.subject_delete_marker_ttl),
        "denyDelete": config.deny_delete or None,
        "republish": {"source": again.src, "destination": again.dest} if again else None,
    }


def _consumer(consumer: Consumer, config: ConsumerConfig) -> Json:
    return {
        "streamName": consumer.stream,
        "durableName": config.durable_name,
        "deliverPolicy": _text(config.deliver_policy),
        "ackPolicy": _text(config.ack_policy),
        "ackWait": _seconds(config.ack_wait),
        "maxDeliver": config.max_deliver,
        "maxAckPending": config.max_ack_pending,
        "filterSubjects": config.filter_subjects,
    }


def _text(choice: Any) -> str:
    """An enumeration's value; NACK has the same words as the broker."""
    return str(choice.value)


def _seconds(length: float | None) -> str | None:
    """A duration as Go writes one."""
    return f"{length:g}s" if length else None
