"""The cluster objects of boxes: pods, and the Sandboxes that own them if Sandboxes are used."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from kubernetes_asyncio.client.exceptions import ApiException

from spawner.runtimes.boxes.provider import Box, ProviderError, ProviderFault
from spawner.runtimes.boxes.retry import with_retry
from spawner.runtimes.kubernetes import manifests, states
from spawner.runtimes.kubernetes.cluster import PODS, Cluster
from spawner.runtimes.kubernetes.faults import faults, refused_for_good, status_of
from spawner.runtimes.kubernetes.manifests import GROUP, POD, Json, named
from spawner.runtimes.kubernetes.pod_watch import until

AnswerT = TypeVar("AnswerT")
_SOON: Final = 1
"""The grace period in seconds when a pod is removed: its program was stopped before."""
_DELETION_SECONDS: Final = 20.0
"""Seconds a node may take to confirm a pod's deletion; then the node counts as lost, and deletion is forced."""
_FINALIZERS_SECONDS: Final = 10.0
"""Seconds that finalizers may prevent an object's removal before that fails; the caller repeats it."""


class BoxObjects:
    """Boxes by unit name. `version`: the version of the Sandbox resource in this cluster; None: pods are created."""

    def __init__(self, cluster: Cluster, version: str | None = None) -> None:
        self.cluster = cluster
        self.version = version
        self.pods: str = PODS.format(cluster.namespace)
        self._sandboxes = f"/apis/{GROUP}/{version}/namespaces/{cluster.namespace}/sandboxes"

    @property
    def made(self) -> str:
        """The API path of the objects that we create."""
        return self._sandboxes if self.version else self.pods

    async def pod(self, name: str) -> Json | None:
        """The pod of a box."""
        return await self._get(self.pods, name)

    async def sandbox(self, name: str) -> Json | None:
        """The Sandbox of a box; None also if this cluster has no Sandboxes."""
        return await self._get(self._sandboxes, name) if self.version else None

    async def box(self, name: str) -> Box | None:
        """A box in its current state, or None."""
        return states.of(*await self.read(name))

    async def read(self, name: str) -> tuple[Json | None, Json | None]:
        """The Sandbox and the pod of a box."""
        return await self.sandbox(name), await self.pod(name)

    async def find(self, labels: Mapping[str, str]) -> list[Box]:
        """All boxes with these labels."""
        return boxes_of(*await self.listed(labels))

    async def listed(self, labels: Mapping[str, str]) -> tuple[dict[str, Json], dict[str, Json]]:
        """The Sandboxes and the pods of all boxes with these labels, by name."""
        wanted = manifests.selector(labels)
        pods = {one["metadata"]["name"]: one for one in await self._list(self.pods, wanted)}
        owners = {one["metadata"]["name"]: one for one in await self._list(self.made, wanted)} if self.version else {}
        return owners, pods

    async def make(self, body: Json) -> None:
        """Create an object, unless one with this name exists; the caller must check whether it belongs to this herd."""

        async def once() -> None:
            try:
                await self.cluster.make(self.made, body)
            except ApiException as error:
                # A concurrent quota update is a conflict as well, and then the object does not exist.
                if status_of(error).get("reason") != "AlreadyExists":
                    raise

        await _call(f"creating {body['metadata']['name']}", once)

    async def until(self, name: str, holds: Callable[[Json | None], bool], seconds: float) -> Json | None:
        """Wait until `holds` is true of the pod of a box, for at most `seconds`. Raises `ProviderError`."""
        return await until(self.cluster, self.pods, named(name), holds, seconds)

    async def refused(self, name: str, seconds: float) -> ProviderError | None:
        """Wait until the API server permanently refuses the pod that a Sandbox's controller creates; returns the error.

        None if the Sandbox no longer exists. Raises `ProviderError`.
        """
        what = f"creating the pod of {name}"

        def holds(sandbox: Json | None) -> bool:
            return sandbox is None or refused_for_good(states.refusal_of(sandbox), what) is not None

        found = await until(self.cluster, self._sandboxes, named(name), holds, seconds)
        return refused_for_good(states.refusal_of(found), what)

    async def note(self, name: str, notes: Mapping[str, str]) -> None:
        """Set annotations of a pod, and record the pod's uid on its Sandbox, if it has one."""
        pod = await self._change(self.pods, name, {"annotations": dict(notes)})
        if owner := self._sandboxes_of(pod):
            await self._change(owner, name, {"annotations": {POD: pod["metadata"]["uid"]}})

    async def labelled(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set or remove labels of a pod, if it exists."""
        try:
            await self._change(self.pods, name, {"labels": dict(labels)})
        except ProviderError as error:
            if error.fault is not ProviderFault.NOT_FOUND:
                raise

    async def remove(self, name: str) -> None:
        """Remove all objects of a box, and wait until they no longer exist. Raises `ProviderError` (`timed_out`).

        If a pod's node does not respond, the pod is finally deleted without its confirmation. The pod's Sandbox is
        deleted first, even if we no longer create Sandboxes: its controller would create the pod again.
        """
        owner = self._sandboxes_of(await self.pod(name)) or (self.made if self.version else None)
        if owner:
            await self._delete(owner, name)
        await self._delete(self.pods, name, _SOON)
        if not await self._is_removed(self.pods, name, _DELETION_SECONDS):
            await self._delete(self.pods, name, 0)
            await self._wait_removed(self.pods, name)
        if owner:
            await self._wait_removed(owner, name)

    async def _is_removed(self, path: str, name: str, seconds: float) -> bool:
        """Whether an object is removed within `seconds`; False at once if only finalizers prevent a pod's removal."""

        def holds(item: Json | None) -> bool:
            return item is None or (bool(states.finalizers(item)) and not states.runs(item))

        try:
            return await until(self.cluster, path, named(name), holds, seconds) is None
        except ProviderError as error:
            if error.fault is not ProviderFault.TIMED_OUT:
                raise
        return False

    async def _wait_removed(self, path: str, name: str) -> None:
        """Wait until an object no longer exists. Raises `ProviderError` with the finalizers that prevent it."""
        last: list[str] = []

        def holds(item: Json | None) -> bool:
            last[:] = states.finalizers(item)
            return item is None

        try:
            await until(self.cluster, path, named(name), holds, _FINALIZERS_SECONDS)
        except ProviderError as error:
            if error.fault is not ProviderFault.TIMED_OUT:
                raise
            raise ProviderError(error.fault, not_removed(named(name), last)) from error

    def _sandboxes_of(self, pod: Json | None) -> str | None:
        """The API path of the Sandbox that owns a pod; None if none does."""
        owners = (pod or {}).get("metadata", {}).get("ownerReferences") or []
        made = (one["apiVersion"] for one in owners if one["kind"] == "Sandbox")
        version = next((version for version in made if version.startswith(f"{GROUP}/")), None)
        return version and f"/apis/{version}/namespaces/{self.cluster.namespace}/sandboxes"

    async def _get(self, path: str, name: str) -> Json | None:
        try:
            return await _call(f"looking for {name}", lambda: self.cluster.get(f"{path}/{named(name)}"))
        except ProviderError as error:
            if error.fault is ProviderFault.NOT_FOUND:
                return None
            raise

    async def _list(self, path: str, selector: str) -> list[Json]:
        listed = await _call("listing boxes", lambda: self.cluster.get(path, labelSelector=selector))
        found: list[Json] = listed["items"]
        return found

    async def _change(self, path: str, name: str, metadata: Json) -> Json:
        body = {"metadata": metadata}
        return await _call(f"marking {name}", lambda: self.cluster.change(f"{path}/{named(name)}", body))

    async def _delete(self, path: str, name: str, grace: int | None = None) -> None:
        try:
            await _call(f"removing {name}", lambda: self.cluster.delete(f"{path}/{named(name)}", grace))
        except ProviderError as error:
            if error.fault is not ProviderFault.NOT_FOUND:
                raise


def not_removed(name: str, finalizers: Sequence[str]) -> str:
    """The error message about a deleted object that still exists: its finalizers, and a remedy."""
    if not finalizers:
        return f"kubernetes: {name} was deleted, and its cluster has not removed it yet"
    held = ", ".join(finalizers)
    return f"kubernetes: {name} was deleted, and finalizers still hold it: {held}; check the controllers that set them"


async def _call(what: str, call: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """Call the cluster, with retries: each of these calls is idempotent."""

    async def once() -> AnswerT:
        with faults(what):
            return await call()

    return await with_retry(once)


def boxes_of(owners: Mapping[str, Json], pods: Mapping[str, Json]) -> list[Box]:
    """The boxes of these Sandboxes and pods, each given by its name."""
    found = [states.box(pod, owners.get(name)) for name, pod in pods.items()]
    return found + [states.podless(one) for name, one in owners.items() if name not in pods]
