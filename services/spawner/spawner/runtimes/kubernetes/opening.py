"""Opening the Kubernetes runtime: the cluster is asked who it is and what it has, once."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import load_incluster_config, load_kube_config

from sandherd.settings import Settings
from sandherd.settings.kubernetes import NOBODY
from sandherd.telemetry import logs
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.kubernetes import network
from spawner.runtimes.kubernetes.cluster import PODS, POLICIES, Cluster
from spawner.runtimes.kubernetes.faults import faults
from spawner.runtimes.kubernetes.manifests import GROUP, Json, Kind
from spawner.runtimes.kubernetes.provider import Pods

_SECRETS: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ACCOUNT: Final = _SECRETS / "token"
_OWN: Final = _SECRETS / "namespace"
"""Where a pod finds the name of its own namespace."""
_VERSIONS: Final = ("v1beta1", "v1alpha1")
"""The versions of Sandboxes whose fields that we need are the same; the first that is there is taken."""
_NOT_THERE, _CONFLICT = 404, 409
_MB_PER_GB: Final = 1024
_OWNERS: Final = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
_log = logs.get("runtime.kubernetes")


async def open_kubernetes(settings: Settings, herd: str) -> BoxRuntime:
    """The runtime. Raises `RuntimeFailedError` where there is no cluster, or it refuses what we can't do without."""
    if settings.sandbox_image is None:
        raise RuntimeFailedError(
            RuntimeFault.REFUSED, "runtime kubernetes needs an image: set SANDBOX_IMAGE to one that its nodes can fetch"
        )
    try:
        found = await configuration(settings.kubernetes_config)
        with faults("reading the configuration"):  # its certificates are read only now
            cluster = Cluster(found, settings.kubernetes_namespace)
        try:
            pods = await _opened(cluster, settings, herd)
        except BaseException:
            await cluster.close()
            raise
    except ProviderError as error:
        raise RuntimeFailedError(RuntimeFault.REFUSED, str(error)) from error
    return BoxRuntime(pods, herd, settings.sandbox_nats_url)


async def configuration(file: Path | None) -> Configuration:
    """Where the cluster is and what it is shown. Raises `ProviderError`."""
    found = Configuration()
    found.retries = False
    with faults("reading the configuration"):
        if file is None and _ACCOUNT.exists():
            load_incluster_config(client_configuration=found)
        else:
            await _loaded(file, found)
    return found


async def _loaded(file: Path | None, into: Configuration) -> None:
    try:
        await load_kube_config(str(file) if file else None, client_configuration=into, persist_config=False)
    except (yaml.YAMLError, TypeError, ValueError, AttributeError, KeyError) as error:
        # What the client stumbles over where the file is none; its own text may repeat what stands there.
        named = file or "the file of KUBECONFIG"
        told = f"kubernetes: {named} is no configuration of a cluster: {type(error).__name__}"
        raise ProviderError(ProviderFault.REFUSED, told) from None


async def _opened(cluster: Cluster, settings: Settings, herd: str) -> Pods:
    with faults("saying who it is"):
        said = await cluster.get("/version")
    with faults(f"looking into namespace {cluster.namespace}"):
        await cluster.get(PODS.format(cluster.namespace), limit="1")
    version = await _sandboxes(cluster, settings.kubernetes_kind)
    owner = await _owner(cluster, settings.kubernetes_owner)
    brokers = settings.sandbox_nats_url or settings.nats_url
    made_as = kind(settings, owner)
    entrance = None if made_as.closed else network.Entrance(sources(settings), made_as.ports)
    await guard(cluster, network.policy(herd, brokers, sorted(settings.kubernetes_egress), owner, entrance))
    _log.info("kubernetes runtime", cluster=said.get("gitVersion"), namespace=cluster.namespace, sandboxes=version)
    return Pods(cluster, made_as, version)


def kind(settings: Settings, owner: Json | None = None) -> Kind:
    """How pods are made by these settings."""
    uid, _, gid = settings.kubernetes_user.partition(":")
    return Kind(
        image=settings.sandbox_image or "",
        user=(int(uid), int(gid)),
        read_only=settings.kubernetes_read_only,
        cpu=settings.kubernetes_cpu,
        storage_mb=int(settings.kubernetes_storage_gb * _MB_PER_GB),
        pull_policy=settings.kubernetes_pull_policy,
        pull_secrets=sorted(settings.kubernetes_pull_secrets),
        service_account=settings.kubernetes_service_account,
        owner=owner,
        placement=settings.kubernetes_placement,
        placements=settings.kubernetes_placements,
        pending=settings.kubernetes_pending_timeout,
        closed=NOBODY in settings.kubernetes_ingress,
        ports=tuple(sorted(settings.kubernetes_ports)),
    )


def sources(settings: Settings, own: Path = _OWN) -> list[str]:
    """Who is let in: as it is set, or else what is beside the spawner, or beside the sandboxes if it is no pod."""
    if settings.kubernetes_ingress:
        return sorted(settings.kubernetes_ingress)
    return [own.read_text().strip() if own.exists() else settings.kubernetes_namespace]


async def guard(cluster: Cluster, policy: Json) -> None:
    """See to it that the herd's network is as it should be, whatever it was. Another replica may do so as well."""
    path = POLICIES.format(cluster.namespace)
    own = f"{path}/{policy['metadata']['name']}"
    with faults("keeping the network of sandboxes closed"):
        missing = await _is(_NOT_THERE, cluster.change(own, policy))
        if missing and await _is(_CONFLICT, cluster.make(path, policy)):
            await cluster.change(own, policy)


async def _is(status: int, call: Awaitable[Json]) -> bool:
    """Whether the cluster answers that."""
    try:
        await call
    except ApiException as error:
        if error.status != status:
            raise
        return True
    return False


async def _sandboxes(cluster: Cluster, wanted: str) -> str | None:
    """The version of Sandboxes to make; None: pods are made."""
    if wanted == "pod":
        return None
    try:
        with faults("looking for Sandboxes"):
            served: dict[str, Any] = await cluster.get(f"/apis/{GROUP}")
    except ProviderError as error:
        if error.fault is not ProviderFault.NOT_FOUND:
            raise
        served = {"versions": []}
    there = {one["version"] for one in served["versions"]}
    found = next((version for version in _VERSIONS if version in there), None)
    if found is None and wanted == "sandbox":
        told = f"kubernetes: the cluster has no Sandboxes of {GROUP}; install them, or set SANDHERD_KUBERNETES_KIND=pod"
        raise ProviderError(ProviderFault.REFUSED, told)
    return found


async def _owner(cluster: Cluster, name: str | None) -> Json | None:
    """What all that is made here belongs to: with it, it goes."""
    if name is None:
        return None
    what, _, called = name.partition("/")
    with faults(f"looking for {name}, which SANDHERD_KUBERNETES_OWNER names"):
        found = await cluster.get(f"/apis/apps/v1/namespaces/{cluster.namespace}/{_OWNERS[what]}/{called}")
    return {"apiVersion": "apps/v1", "kind": what, "name": called, "uid": found["metadata"]["uid"]}
