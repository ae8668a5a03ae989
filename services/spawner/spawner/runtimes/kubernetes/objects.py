"""The cluster objects of boxes: pods, and the Sandboxes that own them if Sandboxes are used."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from kubernetes_asyncio.client.exceptions import ApiException

from spawner.runtimes.boxes.provider import Box, ProviderError, ProviderFault
from spawner.runtimes.boxes.retry import with_retry
from spawner.runtimes.kubernetes import manifests, states
from spawner.runtimes.kubernetes.cluster import PODS, Cluster
from spawner.runtimes.kubernetes.faults import faults, permanent_refusal, status_of
from spawner.runtimes.kubernetes.manifests import GROUP, POD, Json, pod_name
from spawner.runtimes.kubernetes.pod_watch import until

ResultT = TypeVar("ResultT")
_REMOVAL_GRACE: Final = 1
"""The grace period in seconds when a pod is removed. It is short, because its program was stopped before."""
_DELETION_SECONDS: Final = 20.0
"""Seconds a node may take to confirm a pod's deletion. After that the node counts as lost, and deletion is forced."""
_FINALIZERS_SECONDS: Final = 10.0
"""Seconds to wait for the finalizers of a deleted object. After that `remove` fails, and its caller repeats it."""


class BoxObjects:
    """The objects of boxes, by the boxes' names. `version`: that of created Sandboxes; None: pods are created."""

    def __init__(self, cluster: Cluster, version: str | None = None) -> None:
        self.cluster = cluster
        self.version = version
        self.pods: str = PODS.format(cluster.namespace)
        self._sandboxes = f"/apis/{GROUP}/{version}/namespaces/{cluster.namespace}/sandboxes"

    @property
    def created_path(self) -> str:
        """The API path of the objects that we create."""
        return self._sandboxes if self.version else self.pods

    async def pod(self, name: str) -> Json | None:
        """The pod of a box."""
        return await self._get(self.pods, name)

    async def sandbox(self, name: str) -> Json | None:
        """The Sandbox of a box; None also if no Sandboxes are created."""
        return await self._get(self._sandboxes, name) if self.version else None

    async def box(self, name: str) -> Box | None:
        """A box in its current state, or None."""
        return states.box_of(*await self.read(name))

    async def read(self, name: str) -> tuple[Json | None, Json | None]:
        """The Sandbox and the pod of a box."""
        return await self.sandbox(name), await self.pod(name)

    async def find(self, labels: Mapping[str, str]) -> list[Box]:
        """All boxes with these labels."""
        return boxes_of(*await self.list_objects(labels))

    async def list_objects(self, labels: Mapping[str, str]) -> tuple[dict[str, Json], dict[str, Json]]:
        """The Sandboxes and the pods of all boxes with these labels, by name."""
        selector = manifests.selector(labels)
        pods = await self._list(self.pods, selector)
        owners = await self._list(self.created_path, selector) if self.version else []
        return {owner["metadata"]["name"]: owner for owner in owners}, {pod["metadata"]["name"]: pod for pod in pods}

    async def make(self, body: Json) -> None:
        """Create an object, unless one with its name exists. The caller must check the herd of the existing object."""

        async def once() -> None:
            try:
                await self.cluster.make(self.created_path, body)
            except ApiException as error:
                # After a conflict with a concurrent update of a quota, the object does not exist.
                if status_of(error).get("reason") != "AlreadyExists":
                    raise

        await _call(f"creating {body['metadata']['name']}", once)

    async def until(self, name: str, condition: Callable[[Json | None], bool], seconds: float) -> Json | None:
        """Wait until `condition` is true of the pod of a box, for at most `seconds`. Raises `ProviderError`."""
        return await until(self.cluster, self.pods, pod_name(name), condition, seconds)

    async def wait_refused(self, name: str, seconds: float) -> ProviderError | None:
        """Wait until the API server permanently refuses to let a Sandbox's controller create the pod.

        Returns the error; None if the Sandbox no longer exists. Raises `ProviderError`.
        """
        what = f"creating the pod of {name}"

        def condition(sandbox: Json | None) -> bool:
            return sandbox is None or permanent_refusal(states.refusal_of(sandbox), what) is not None

        sandbox = await until(self.cluster, self._sandboxes, pod_name(name), condition, seconds)
        return permanent_refusal(states.refusal_of(sandbox), what)

    async def note(self, name: str, notes: Mapping[str, str]) -> None:
        """Set annotations of a pod, and record the pod's uid on its Sandbox, if it has one."""
        pod = await self._change(self.pods, name, {"annotations": dict(notes)})
        if owner := self._sandboxes_of(pod):
            await self._change(owner, name, {"annotations": {POD: pod["metadata"]["uid"]}})

    async def set_labels(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set labels of a pod, or remove those with the value None. Does nothing if the pod does not exist."""
        try:
            await self._change(self.pods, name, {"labels": dict(labels)})
        except ProviderError as error:
            if error.fault is not ProviderFault.NOT_FOUND:
                raise

    async def remove(self, name: str) -> None:
        """Remove all objects of a box, and wait until they no longer exist. Raises `ProviderError` (`timed_out`).

        If the pod's node does not respond, the pod is finally deleted without its confirmation. The pod's Sandbox is
        deleted first, even if we no longer create Sandboxes, because its controller would create the pod again.
        """
        owner = self._sandboxes_of(await self.pod(name)) or (self.created_path if self.version else None)
        if owner:
            await self._delete(owner, name)
        await self._delete(self.pods, name, _REMOVAL_GRACE)
        if not await self._is_removed(self.pods, name, _DELETION_SECONDS):
            await self._delete(self.pods, name, 0)
            await self._wait_removed(self.pods, name)
        if owner:
            await self._wait_removed(owner, name)

    async def _is_removed(self, path: str, name: str, seconds: float) -> bool:
        """Whether a pod is removed within `seconds`. False immediately if only finalizers prevent its removal."""

        def condition(item: Json | None) -> bool:
            return item is None or (bool(states.finalizers(item)) and not states.accepts_commands(item))

        try:
            return await until(self.cluster, path, pod_name(name), condition, seconds) is None
        except ProviderError as error:
            if error.fault is not ProviderFault.TIMED_OUT:
                raise
        return False

    async def _wait_removed(self, path: str, name: str) -> None:
        """Wait until an object no longer exists. Raises `ProviderError` with the finalizers that prevent it."""
        last: list[str] = []

        def condition(item: Json | None) -> bool:
            last[:] = states.finalizers(item)
            return item is None

        try:
            await until(self.cluster, path, pod_name(name), condition, _FINALIZERS_SECONDS)
        except ProviderError as error:
            if error.fault is not ProviderFault.TIMED_OUT:
                raise
            raise ProviderError(error.fault, removal_message(pod_name(name), last)) from error

    def _sandboxes_of(self, pod: Json | None) -> str | None:
        """The API path of the Sandboxes in the version of the one that owns this pod; None if none does."""
        owners = (pod or {}).get("metadata", {}).get("ownerReferences") or []
        versions = (owner["apiVersion"] for owner in owners if owner["kind"] == "Sandbox")
        version = next((version for version in versions if version.startswith(f"{GROUP}/")), None)
        return version and f"/apis/{version}/namespaces/{self.cluster.namespace}/sandboxes"

    async def _get(self, path: str, name: str) -> Json | None:
        try:
            return await _call(f"looking for {name}", lambda: self.cluster.get(f"{path}/{pod_name(name)}"))
        except ProviderError as error:
            if error.fault is ProviderFault.NOT_FOUND:
                return None
            raise

    async def _list(self, path: str, selector: str) -> list[Json]:
        reply = await _call("listing boxes", lambda: self.cluster.get(path, labelSelector=selector))
        items: list[Json] = reply["items"]
        return items

    async def _change(self, path: str, name: str, metadata: Json) -> Json:
        body = {"metadata": metadata}
        return await _call(f"marking {name}", lambda: self.cluster.change(f"{path}/{pod_name(name)}", body))

    async def _delete(self, path: str, name: str, grace: int | None = None) -> None:
        try:
            await _call(f"removing {name}", lambda: self.cluster.delete(f"{path}/{pod_name(name)}", grace))
        except ProviderError as error:
            if error.fault is not ProviderFault.NOT_FOUND:
                raise


def removal_message(name: str, finalizers: Sequence[str]) -> str:
    """The error message about a deleted object that still exists, with its finalizers and a remedy."""
    if not finalizers:
        return f"kubernetes: {name} was deleted, and its cluster has not removed it yet"
    names = ", ".join(finalizers)
    return f"kubernetes: {name} was deleted, and finalizers still hold it: {names}; check the controllers that set them"


async def _call(what: str, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Call the cluster, with retries, because each of these calls is idempotent."""

    async def once() -> ResultT:
        with faults(what):
            return await call()

    return await with_retry(once)


def boxes_of(owners: Mapping[str, Json], pods: Mapping[str, Json]) -> list[Box]:
    """The boxes of these Sandboxes and pods, which are given by their names."""
    boxes = [states.box(pod, owners.get(name)) for name, pod in pods.items()]
    return boxes + [states.box_without_pod(owner) for name, owner in owners.items() if name not in pods]
