"""Values of all kinds, such that any two choices are together in one line."""

import itertools
from typing import Any

import pytest

from tests.integration.deploy.charts import NAMESPACE, Json, merged

KEDA = {"enabled": True, "monitor": "nats-headless.nats:8222", "account": "A" + "B" * 55}
MODEL = {"secretEnv": {"ANTHROPIC_API_KEY": {"secret": "models", "key": "anthropic"}}}
FORGES: Json = {
    "repositories": {
        "enabled": True,
        "githubToken": {"secret": "github"},
        "credentials": {"secret": "forges", "key": "hosts"},
        "forgeTokens": {"secret": "forge-tokens"},
        "githubApp": {"secret": "github-app", "key": "app.pem"},
        "signing": {"secret": "signing"},
        "gitProxy": {"enabled": True, "url": "https://git.example.org", "from": [{"namespaceSelector": {}}]},
        "forges": {"ports": [443, 8443]},
    },
    "settings": {
        "github_app_id": "12345",
        "signing_committer": "A <a@b.example>",
        "forges": ["gitlab=https://git.example.org:8443"],
    },
}
CHOICES: dict[str, list[Json]] = {
    "runtime": [{}, {"settings": {"runtime": "remote"}}, {"sandboxes": {"namespace": NAMESPACE}}],
    "monitoring": [{}, {"monitoring": {"enabled": True}}, {"monitoring": {"enabled": True, "kind": "ServiceMonitor"}}],
    "scaling": [{}, {"autoscaling": KEDA}],
    "network": [
        {},
        {"networkPolicy": {"enabled": False}},
        {
            "networkPolicy": {
                "database": {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]},
                "spawnerEgress": [{"ports": [{"protocol": "TCP", "port": 443}]}],
                "relayEgress": [{"ports": [{"protocol": "TCP", "port": 443}]}],
                "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
            },
            "telemetry": {"otlpEndpoint": "http://collector.monitoring:4318"},
        },
    ],
    "repositories": [
        {},
        merged(FORGES, {"repositories": {"mirrors": {"storageClass": "fast", "size": "40Gi"}}}),
        {"repositories": {"mirrors": {"claim": "mirrors"}}},
    ],
    "setup": [{}, {"setup": {"provision": False, "migrate": False}}, {"nats": {"replicas": 1}}],
    "pods": [
        {},
        {
            "image": {"pullSecrets": ["one", "two"], "repository": "", "tag": "next"},
            "pods": {
                "user": None,
                "labels": {"team": "agents"},
                "annotations": {"a.b/c": "d"},
                "nodeSelector": {"kubernetes.io/arch": "amd64"},
                "tolerations": [{"key": "k", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {}},
                "priorityClassName": "high",
                "env": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"}],
                "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
                "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
            },
            "services": {"spawner": MODEL},
            "sandboxes": {
                "quota": {"pods": 50, "requests.memory": "100Gi"},
                "limitRange": [{"type": "Container", "max": {"memory": "8Gi"}}],
                "namespaceLabels": {"team": "agents"},
                "podSecurityVersion": "v1.36",
                "projects": {"team": {"namespace": "agents-of-team", "quota": {"pods": 9}}},
            },
        },
    ],
    "platform": [
        {},
        {
            "image": {"digests": {"monitor": "sha256:" + "0" * 64, "cli": "sha256:" + "1" * 64}},
            "nats": {
                "url": "tls://nats.nats.svc:4222",
                "tls": {"secret": "nats-tls", "cert": "tls.crt", "key": "tls.key"},
                "sandboxTls": {"secret": "sandbox-tls"},
            },
            "networkPolicy": {"dns": {"ports": [53, 5353], "servers": ["169.254.20.10", "kube-system/k8s-app=dns"]}},
            "services": {
                "monitor": {
                    "annotations": {"reloader.stakater.com/auto": "true"},
                    "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn"},
                    "nodeSelector": {"pool": "services"},
                    "tolerations": [],
                    "affinity": {"podAntiAffinity": {}},
                    "priorityClassName": "low",
                }
            },
            "extraObjects": [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}, "data": {}}
            ],
        },
    ],
}
"""The choices of each kind; each meets every choice of each other kind in one of the lines below."""


def lines() -> list[Json]:
    """Values such that any two choices are together in a line: all pairs, without all combinations."""
    sizes = [range(len(choices)) for choices in CHOICES.values()]
    missing = {
        ((a, i), (b, j))
        for (a, first), (b, second) in itertools.combinations(enumerate(sizes), 2)
        for i, j in itertools.product(first, second)
    }
    found = []
    while missing:
        line = max(itertools.product(*sizes), key=lambda line: len(missing & pairs(line)))
        missing -= pairs(line)
        values: Json = {}
        for choices, index in zip(CHOICES.values(), line, strict=True):
            values = merged(values, choices[index])
        found.append(values)
    return found


def pairs(line: tuple[int, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(line), 2))


MATRIX = [pytest.param(values, id=str(number)) for number, values in enumerate(lines())]
