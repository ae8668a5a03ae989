"""The fields of the custom resources that we use, after their projects' references."""

from typing import Any

Json = dict[str, Any]
RELABELLED: Json = {"relabelings": [{"sourceLabels": [str], "targetLabel": str, "replacement": str}]}
FIELDS: dict[str, Any] = {
    # keda.sh/docs, ScaledObject and the trigger `nats-jetstream`
    "keda.sh/v1alpha1 ScaledObject": {
        "scaleTargetRef": {"name": str},
        "minReplicaCount": int,
        "maxReplicaCount": int,
        "pollingInterval": int,
        "cooldownPeriod": int,
        "triggers": [
            {
                "type": str,
                "metadata": {
                    "natsServerMonitoringEndpoint": str,
                    "accountID": str,
                    "stream": str,
                    "consumer": str,
                    "lagThreshold": str,
                },
            }
        ],
    },
    # prometheus-operator.dev/docs, API reference
    "monitoring.coreos.com/v1 PodMonitor": {
        "selector": dict,
        "podMetricsEndpoints": [{"port": str, "path": str, "interval": str, **RELABELLED}],
        "podTargetLabels": [str],
    },
    "monitoring.coreos.com/v1 ServiceMonitor": {
        "selector": dict,
        "endpoints": [{"port": str, "path": str, "interval": str, **RELABELLED}],
        "targetLabels": [str],
    },
    "monitoring.coreos.com/v1 PrometheusRule": {
        "groups": [
            {
                "name": str,
                "interval": str,
                "rules": [
                    {
                        "alert": str,
                        "record": str,
                        "expr": (str, int),
                        "for": str,
                        "keep_firing_for": str,
                        "labels": dict,
                        "annotations": dict,
                    }
                ],
            }
        ]
    },
    # github.com/nats-io/nack, deploy/crds.yml; v1beta2
    "jetstream.nats.io/v1beta2 Stream": {
        "name": str,
        "description": str,
        "subjects": [str],
        "retention": str,
        "discard": str,
        "discardPerSubject": bool,
        "storage": str,
        "maxAge": str,
        "maxBytes": int,
        "maxMsgsPerSubject": int,
        "duplicateWindow": str,
        "replicas": int,
        "allowDirect": bool,
        "allowRollup": bool,
        "allowMsgTtl": bool,
        "subjectDeleteMarkerTtl": str,
        "denyDelete": bool,
        "republish": {"source": str, "destination": str},
        "preventDelete": bool,
        "account": str,
    },
    "jetstream.nats.io/v1beta2 Consumer": {
        "streamName": str,
        "durableName": str,
        "deliverPolicy": str,
        "ackPolicy": str,
        "ackWait": str,
        "maxDeliver": int,
        "maxAckPending": int,
        "filterSubject": str,
        "filterSubjects": [str],
        "preventDelete": bool,
        "account": str,
    },
    "jetstream.nats.io/v1beta2 Account": {
        "servers": [str],
        "creds": {"secret": {"name": str}, "file": str},
    },
}


def fits(item: Json) -> None:
    """Raises `AssertionError` for a field that is unknown, or has a value of another type."""
    kind = f"{item['apiVersion']} {item['kind']}"
    assert item.keys() == {"apiVersion", "kind", "metadata", "spec"}, kind
    assert item["metadata"].keys() <= {"name", "namespace", "labels", "annotations"}, kind
    _look(item["spec"], FIELDS[kind], f"{kind}.spec")


def _look(value: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, dict):
        assert isinstance(value, dict), where
        assert value.keys() <= wanted.keys(), f"{where}: {value.keys() - wanted.keys()}"
        for key, one in value.items():
            _look(one, wanted[key], f"{where}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(value, list), where
        for one in value:
            _look(one, wanted[0], where)
    else:
        assert isinstance(value, wanted), f"{where}: {value!r}"
        assert wanted is bool or not isinstance(value, bool), where
