"""Opens the Kubernetes runtime: checks the cluster's version and resources once."""

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import load_incluster_config, load_kube_config

from sandherd.settings import Settings
from sandherd.settings.kubernetes import NO_INGRESS
from sandherd.telemetry import logs
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.kubernetes import network
from spawner.runtimes.kubernetes.cluster import PODS, POLICIES, Cluster
from spawner.runtimes.kubernetes.faults import faults
from spawner.runtimes.kubernetes.manifests import GROUP, Json, PodOptions
from spawner.runtimes.kubernetes.namespaces import Namespaces
from spawner.runtimes.kubernetes.provider import PodProvider

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_FILE: Final = _SERVICE_ACCOUNT / "token"
_NAMESPACE_FILE: Final = _SERVICE_ACCOUNT / "namespace"
"""The file in a pod with the name of its namespace."""
_VERSIONS: Final = ("v1beta1", "v1alpha1")
"""The supported versions of the resource Sandbox. The fields that we need are the same. The first available version is
used."""
_NOT_FOUND, _CONFLICT = 404, 409
_MB_PER_GB: Final = 1024
_OWNER_RESOURCES: Final = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
_log = logs.get("runtime.kubernetes")


async def open_kubernetes(settings: Settings, herd: str) -> BoxRuntime:
    """Open the runtime. Raises `RuntimeFailedError` if the cluster is unavailable or refuses a required request."""
    if settings.sandbox_image is None:
        raise RuntimeFailedError(
            RuntimeFault.REFUSED, "runtime kubernetes needs an image: set SANDBOX_IMAGE to one that its nodes can pull"
        )
    try:
        provider = await _provider(await configuration(settings.kubernetes_config), settings, herd)
    except ProviderError as error:
        raise RuntimeFailedError(RuntimeFault.REFUSED, str(error)) from error
    return BoxRuntime(provider, herd, settings.sandbox_nats_url)


async def _provider(client: Configuration, settings: Settings, herd: str) -> PodProvider | Namespaces:
    """The provider of the sandboxes' namespace, or of several namespaces if projects have their own."""
    async with AsyncExitStack() as clusters:
        by_name: dict[str, PodProvider] = {}
        for name in sorted({settings.kubernetes_namespace, *settings.kubernetes_namespaces.values()}):
            with faults("reading the configuration"):  # the client reads certificates only now
                cluster = Cluster(client, name)
            clusters.push_async_callback(cluster.close)  # so that a failure or cancellation leaves no connection open
            by_name[name] = await _open_provider(cluster, settings, herd)
        clusters.pop_all()
    default = by_name[settings.kubernetes_namespace]
    projects = {project: by_name[name] for project, name in settings.kubernetes_namespaces.items()}
    return Namespaces(default, projects) if len(by_name) > 1 else default


async def configuration(file: Path | None) -> Configuration:
    """The client's configuration: the cluster's address and the credential. Raises `ProviderError`."""
    client = Configuration()
    client.retries = False
    with faults("reading the configuration"):
        if file is None and _TOKEN_FILE.exists():
            load_incluster_config(client_configuration=client)
        else:
            await _load_kubeconfig(file, client)
    return client


async def _load_kubeconfig(file: Path | None, client: Configuration) -> None:
    try:
        await load_kube_config(str(file) if file else None, client_configuration=client, persist_config=False)
    except (yaml.YAMLError, TypeError, ValueError, AttributeError, KeyError) as error:
        # The text of the client's errors for an invalid file may contain parts of the file.
        source = file or "the file of KUBECONFIG"
        message = f"kubernetes: {source} is not a valid kubeconfig: {type(error).__name__}"
        raise ProviderError(ProviderFault.REFUSED, message) from None


async def _open_provider(cluster: Cluster, settings: Settings, herd: str) -> PodProvider:
    with faults("requesting the version"):
        version_info = await cluster.get("/version")
    with faults(f"listing pods in namespace {cluster.namespace}"):
        await cluster.get(PODS.format(cluster.namespace), limit="1")
    version = await _sandbox_version(cluster, settings.kubernetes_kind)
    owner = await _owner(cluster, settings.kubernetes_owner)
    services = ",".join(filter(None, (settings.sandbox_nats_url or settings.nats_url, settings.git_proxy_url)))
    options = pod_options(settings, owner)
    sources = ingress_sources(settings, cluster.namespace)
    ingress = None if options.closed else network.IngressRule(sources, options.ports)
    dns = network.DnsServers(sorted(settings.kubernetes_dns), sorted(settings.kubernetes_dns_ports))
    egress = sorted(settings.kubernetes_egress)
    await apply_policy(cluster, network.policy(herd, services, egress, owner, ingress=ingress, dns=dns))
    _log.info(
        "kubernetes runtime enabled",
        cluster=version_info.get("gitVersion"),
        namespace=cluster.namespace,
        sandboxes=version,
    )
    return PodProvider(cluster, options, version)


def pod_options(settings: Settings, owner: Json | None = None) -> PodOptions:
    """The pod options of these settings."""
    uid, _, gid = settings.kubernetes_user.partition(":")
    return PodOptions(
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
        closed=NO_INGRESS in settings.kubernetes_ingress,
        ports=tuple(sorted(settings.kubernetes_ports)),
    )


def ingress_sources(settings: Settings, namespace: str, namespace_file: Path = _NAMESPACE_FILE) -> list[str]:
    """The sources of allowed ingress: the setting, else our pod's namespace, else `namespace` if we are in no pod."""
    if settings.kubernetes_ingress:
        return sorted(settings.kubernetes_ingress)
    return [namespace_file.read_text().strip() if namespace_file.exists() else namespace]


async def apply_policy(cluster: Cluster, policy: Json) -> None:
    """Create or update the herd's network policy. Another replica may do so at the same time."""
    path = POLICIES.format(cluster.namespace)
    policy_path = f"{path}/{policy['metadata']['name']}"
    with faults("applying the network policy of sandboxes"):
        missing = await _fails_with(_NOT_FOUND, cluster.change(policy_path, policy))
        if missing and await _fails_with(_CONFLICT, cluster.make(path, policy)):
            await cluster.change(policy_path, policy)


async def _fails_with(status: int, call: Awaitable[Json]) -> bool:
    """Whether the call fails with this status."""
    try:
        await call
    except ApiException as error:
        if error.status != status:
            raise
        return True
    return False


async def _sandbox_version(cluster: Cluster, setting: str) -> str | None:
    """The version in which Sandboxes are created; None: pods are created instead."""
    if setting == "pod":
        return None
    try:
        with faults("looking for Sandboxes"):
            served: dict[str, Any] = await cluster.get(f"/apis/{GROUP}")
    except ProviderError as error:
        if error.fault is not ProviderFault.NOT_FOUND:
            raise
        served = {"versions": []}
    available = {entry["version"] for entry in served["versions"]}
    supported = next((version for version in _VERSIONS if version in available), None)
    if supported is None and setting == "sandbox":
        message = (
            f"kubernetes: the cluster has no Sandboxes of {GROUP}; install it, or set SANDHERD_KUBERNETES_KIND=pod"
        )
        raise ProviderError(ProviderFault.REFUSED, message)
    return supported


async def _owner(cluster: Cluster, setting: str | None) -> Json | None:
    """The owner reference of all objects that are created. They are deleted when their owner is deleted."""
    if setting is None:
        return None
    kind, _, name = setting.partition("/")
    with faults(f"looking for {setting}, which SANDHERD_KUBERNETES_OWNER names"):
        owner = await cluster.get(f"/apis/apps/v1/namespaces/{cluster.namespace}/{_OWNER_RESOURCES[kind]}/{name}")
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": owner["metadata"]["uid"]}
