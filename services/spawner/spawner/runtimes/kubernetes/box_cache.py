"""Copies of the objects of boxes, updated by watches, so that reading a box again needs no request to the cluster."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Final

from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import Box
from spawner.runtimes.kubernetes import manifests, states
from spawner.runtimes.kubernetes.cluster import Cluster
from spawner.runtimes.kubernetes.manifests import UNIT, Json, pod_name
from spawner.runtimes.kubernetes.merged_streams import merge
from spawner.runtimes.kubernetes.objects import BoxObjects, boxes_of
from spawner.runtimes.kubernetes.pod_watch import PodList, WatchItem, WatchState, follow

_ALL_HERDS_SELECTOR: Final = manifests.selector({}) + f",{HERD}"
_MAX_SINGLE_READS: Final = 16
"""The maximum number of boxes without copies that are read one by one; if there are more, all boxes are listed."""


class ObjectCache:
    """Copies of all objects of boxes at one API path."""

    def __init__(self, cluster: Cluster, path: str) -> None:
        self._cluster = cluster
        self._path = path
        self.items: dict[str, Json] = {}
        """The copies, by the names of the objects, without fields that a box does not need, such as the spec."""
        self.is_current = False
        """Whether a working watch follows the objects. If not, `items` may be outdated.

        If the server stops responding, this becomes false after at most `cluster.STALE` seconds.
        """

    async def follow(self) -> AsyncGenerator[set[str], None]:
        """Watch until closed; yields the names of changed objects. Raises `ProviderError`."""
        try:
            async with aclosing(follow(self._cluster, self._path, labelSelector=_ALL_HERDS_SELECTOR)) as items:
                async for item in items:
                    yield self._store(item)
        finally:
            self.is_current = False

    def _store(self, watched: WatchItem) -> set[str]:
        """Update the copies. Returns the names of the objects that may have changed."""
        if isinstance(watched, WatchState):
            self.is_current = watched.works
            return set()
        if isinstance(watched, PodList):
            earlier_names = self.items.keys()
            self.items = {item["metadata"]["name"]: _needed_fields(item) for item in watched.items}
            return earlier_names | self.items.keys()
        self.is_current = True
        name: str = watched.item["metadata"]["name"]
        if watched.deleted:
            self.items.pop(name, None)
        else:
            self.items[name] = _needed_fields(watched.item)
        return {name}


class BoxCache:
    """Boxes by unit name, read from copies.

    A copy is used only while watches follow all objects, and only if the watches have reported the box's pod and all of
    our own writes to the box. Otherwise the cluster is queried.
    """

    def __init__(self, objects: BoxObjects) -> None:
        self._objects = objects
        self._pods = ObjectCache(objects.cluster, objects.pods)
        self._sandboxes = ObjectCache(objects.cluster, objects.created_path) if objects.version else None
        self._written: dict[str, int] = {}
        """Units whose copies may be older than our last write to them, with the number of that write."""
        self._writes = 0
        """The number of our writes to all boxes."""

    @property
    def is_current(self) -> bool:
        """Whether working watches follow all objects."""
        return self._pods.is_current and (self._sandboxes is None or self._sandboxes.is_current)

    async def get(self, unit: str) -> Box | None:
        """A box, or None."""
        name = pod_name(unit)
        if self.is_current and self._is_copied(unit):
            return self._copy(name)
        writes = self._writes
        sandbox, pod = await self._objects.read(unit)
        self._reconcile(unit, sandbox, pod, writes)
        return states.box_of(sandbox, pod)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels."""
        if not self.is_current:
            return await self._objects.find(labels)
        units = {_unit(item) for item in [*self._pods.items.values(), *self._owners().values()]} | self._written.keys()
        if sum(not self._is_copied(unit) for unit in units) > _MAX_SINGLE_READS:
            return await self._list(labels)
        boxes = [await self.get(unit) for unit in sorted(units)]
        return [box for box in boxes if box is not None and labels.items() <= box.labels.items()]

    async def _list(self, labels: Mapping[str, str]) -> Sequence[Box]:
        writes = self._writes
        owners, pods = await self._objects.list_objects(labels)
        for unit in list(self._written):
            self._reconcile(unit, owners.get(pod_name(unit)), pods.get(pod_name(unit)), writes)
        return boxes_of(owners, pods)

    def _reconcile(self, unit: str, sandbox: Json | None, pod: Json | None, writes: int) -> None:
        """Use a unit's copies again if they equal these objects. `writes`: `_writes` when they were requested."""
        if (
            self.is_current
            and self._written.get(unit, 0) <= writes
            and self._equals_copies(pod_name(unit), sandbox, pod)
        ):
            self._written.pop(unit, None)

    @contextmanager
    def record_writes(self, unit: str) -> Iterator[None]:
        """A block that writes to a box. Reads of the box after the block include these writes."""
        self._count_write(unit)
        try:
            yield
        finally:
            self._count_write(unit)

    def _count_write(self, unit: str) -> None:
        self._writes += 1
        self._written[unit] = self._writes

    async def changes(self) -> AsyncGenerator[str, None]:
        """Update the copies, and yield the unit of each changed box. Not every change of an object changes its box."""
        known: dict[str, tuple[str, object]] = {}
        sources = [self._pods, *([self._sandboxes] if self._sandboxes else [])]
        async with aclosing(merge([source.follow() for source in sources])) as items:
            async for names in items:
                for name in sorted(names):
                    box, before = self._copy(name), known.pop(name, None)
                    if box is not None:
                        known[name] = box.name, _change_key(box)
                    if unit := _changed_unit(before, known.get(name)):
                        yield unit

    def _owners(self) -> Mapping[str, Json]:
        return self._sandboxes.items if self._sandboxes else {}

    def _copy(self, name: str) -> Box | None:
        return states.box_of(self._owners().get(name), self._pods.items.get(name))

    def _is_copied(self, unit: str) -> bool:
        """Whether a box can be read from copies while they are current."""
        return unit not in self._written and self._is_complete(pod_name(unit))

    def _is_complete(self, name: str) -> bool:
        """Whether there is a copy of the pod, and of the Sandbox that owns it, if it has one."""
        pod = self._pods.items.get(name)
        if pod is None:
            return False
        return self._objects.version is None or name in self._owners() or not states.has_sandbox(pod)

    def _equals_copies(self, name: str, sandbox: Json | None, pod: Json | None) -> bool:
        copies = self._owners().get(name), self._pods.items.get(name)
        return (_version(copies[0]), _version(copies[1])) == (_version(sandbox), _version(pod))


def _needed_fields(item: Json) -> Json:
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    return {"metadata": metadata, "status": item.get("status") or {}}


def _unit(item: Json) -> str:
    metadata = item["metadata"]
    return str((metadata.get("annotations") or {}).get(UNIT, metadata["name"]))


def _version(item: Json | None) -> tuple[str, str] | None:
    return (item["metadata"]["uid"], item["metadata"]["resourceVersion"]) if item else None


def _change_key(box: Box) -> object:
    return box.id, box.state, box.runs, box.end, box.quarantined


def _changed_unit(before: tuple[str, object] | None, now: tuple[str, object] | None) -> str | None:
    """The unit of a box, if the box has changed, appeared or disappeared; else None."""
    latest = now or before
    return latest[0] if latest and before != now else None
