"""The admission checks of an API server: objects must fit their schema and have no unknown field."""

from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # no types

from tests.doubles.kubernetes import schemas
from tests.doubles.kubernetes.store import ApiError, Json

VERSION = "1.37"
SPECS = {
    "v1alpha1": {"podTemplate", "volumeClaimTemplates", "shutdownTime", "shutdownPolicy", "replicas", "service"},
    "v1beta1": {"podTemplate", "volumeClaimTemplates", "shutdownTime", "shutdownPolicy", "operatingMode", "service"},
}
"""The fields of a Sandbox, as the project's API reference names them. A template has the fields of a pod."""


def admit(item: Json) -> None:
    """Check an object. Raises `ApiError` 422 or 400."""
    if item.get("kind") == "Sandbox":
        _sandbox(item)
        return
    try:
        schemas.validate(item, VERSION)
    except kubernetes_validate.ValidationError as error:
        raise _invalid(item, str(error)) from None
    labels(item)
    if item.get("kind") == "Pod":
        restricted(item)


def restricted(pod: Json) -> None:
    """Check the strictest of the Pod Security Standards, as a namespace enforces it. Raises `ApiError` 403."""
    spec = pod["spec"]
    outer = spec.get("securityContext") or {}
    wrong = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    wrong += [f"volume {one['name']}" for one in spec.get("volumes") or [] if not set(one) <= {"name", *_VOLUMES}]
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        own = container.get("securityContext") or {}
        capabilities = own.get("capabilities") or {}
        status = {
            "allowPrivilegeEscalation != false": own.get("allowPrivilegeEscalation") is not False,
            "unrestricted capabilities": capabilities.get("drop") != ["ALL"] or capabilities.get("add"),
            "runAsNonRoot != true": own.get("runAsNonRoot", outer.get("runAsNonRoot")) is not True,
            "runAsUser=0": own.get("runAsUser", outer.get("runAsUser")) == 0,
            "seccompProfile": (own.get("seccompProfile") or outer.get("seccompProfile") or {}).get("type")
            not in {"RuntimeDefault", "Localhost"},
            "privileged": own.get("privileged"),
            "hostPort": any(port.get("hostPort") for port in container.get("ports") or []),
        }
        wrong += [what for what, is_so in status.items() if is_so]
    if wrong:
        name = pod["metadata"]["name"]
        message = f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {", ".join(wrong)}'
        raise ApiError(403, "Forbidden", message, name=name, kind="pods")


_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def labels(item: Json) -> None:
    """Check the forms of labels, names and annotations, which the schema does not describe."""
    import re

    meta = item["metadata"]
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", meta["name"]):
        raise _invalid(item, f"metadata.name: Invalid value: {meta['name']!r}: a lowercase RFC 1123 subdomain")
    for key, value in (meta.get("labels") or {}).items():
        if not re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value):
            raise _invalid(item, f"metadata.labels: Invalid value: {value!r} of {key}")


def _sandbox(item: Json) -> None:
    version = item["apiVersion"].partition("/")[2]
    spec = item["spec"]
    unknown = set(spec) - SPECS[version] | set(item) - {"apiVersion", "kind", "metadata", "spec"}
    template = spec.get("podTemplate") or {}
    unknown |= set(template) - {"metadata", "spec"} | set(template.get("metadata") or {}) - {"labels", "annotations"}
    if unknown or "spec" not in template:
        raise _invalid(item, f"unknown or missing fields: {sorted(unknown)}")
    labels(item)
    admit(pod_of(item))


def pod_of(sandbox: Json) -> Json:
    """The pod that the controller creates for a Sandbox."""
    template = sandbox["spec"]["podTemplate"]
    metadata: dict[str, Any] = {**(template.get("metadata") or {}), "name": sandbox["metadata"]["name"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _invalid(item: Json, why: str) -> ApiError:
    name, kind = item["metadata"].get("name", ""), item.get("kind", "")
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {why}', name=name, kind=kind)
