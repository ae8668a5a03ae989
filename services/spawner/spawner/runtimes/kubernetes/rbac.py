"""The spawner's permissions in the namespace of its sandboxes: defined here, and rendered as manifests. Pure."""

from typing import Final

import yaml

from spawner.runtimes.kubernetes.manifests import GROUP, Json

_ALL_VERBS: Final = ["create", "get", "list", "watch", "patch", "delete"]
RULES: Final[list[Json]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": _ALL_VERBS},
    # A WebSocket is opened with a GET request. Newer servers also require the permission to create.
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["create", "patch"]},
    {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets"], "verbs": ["get"]},
    {"apiGroups": [GROUP], "resources": ["sandboxes"], "verbs": _ALL_VERBS},
]
_HEAD: Final = """\
# Made by `make docs` from services/spawner/spawner/runtimes/kubernetes/rbac.py: all that the spawner needs.
# It is for the namespace of the sandboxes, and for the service account that the spawner runs as.
"""


def role(name: str = "sandherd-spawner", account: str = "sandherd-spawner") -> list[Json]:
    """The role and its binding to the service account."""
    labels = {"app.kubernetes.io/name": "sandherd", "app.kubernetes.io/component": "spawner"}
    group = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": {"name": name, "labels": labels},
            "rules": RULES,
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "labels": labels},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account}],
        },
    ]


def document() -> str:
    """The role and its binding, as a file for `kubectl apply`."""
    return _HEAD + yaml.dump_all(role(), Dumper=AnchorlessDumper, sort_keys=False, explicit_start=True)


class AnchorlessDumper(yaml.SafeDumper):
    """A dumper that writes repeated values in full, without YAML anchors, for readability."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # the base class's signature
        """Always true, so that every value is written in full."""
        return True
