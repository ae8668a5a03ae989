"""A node: it accepts every pod, runs it, and reports its status, as a kubelet does."""

import asyncio
import copy
import ipaddress
import itertools
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from spawner.runtimes.cgroups import ControlGroups
from tests.doubles.kubernetes.containers import Container, quantity
from tests.doubles.kubernetes.store import ApiError, Event, Json, Store, now
from tests.doubles.toolchains import Contents

NODE = "node-1"
_BACK_OFF = 10.0
_HOST = "127.0.0.1"
_NETWORK = ipaddress.ip_network("127.88.0.0/16")
"""The addresses of pods. Servers that listen on every address are reached at their pod's.

Real pods share no network; these share this host's, and the address makes a port belong to one pod alone.
"""


class Kubelet:
    """One node with this much memory, which can pull these images."""

    def __init__(self, store: Store, folder: Path, groups: ControlGroups, images: set[str], memory: float) -> None:
        self.store = store
        self.images = images
        self.pull_error = ""
        """The error of its registry, which it returns instead of an image."""
        self.memory = memory
        self.image = Contents()
        """The contents of every image."""
        self.lag = 0.0
        """The delay of the first processes of its containers, in seconds."""
        self.containers: dict[str, Container] = {}
        self._folder = folder
        self._groups = groups
        self._addresses = itertools.count(1)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        store.listeners.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        meta = event.object["metadata"]
        if event.resource == "pods" and event.type == "ADDED":
            self._tasks[meta["uid"]] = asyncio.create_task(self._lead(copy.deepcopy(event.object)))

    async def delete(self, pod: Json, grace: int) -> None:
        """End a pod, and remove it from the list afterwards. Without grace it is removed at once."""
        uid, meta = pod["metadata"]["uid"], pod["metadata"]
        if task := self._tasks.pop(uid, None):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        container = self.containers.get(uid)
        if grace > 0 and container is not None and container.started:
            self._change(pod, {}, {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace})
            container.signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await container.ended()
        if container is None or grace <= 0:
            self._gone(meta)
        if container is not None and container.started:
            container.kill()
            code, _ = await container.ended()
            self._change(pod, {"phase": "Failed" if code else "Succeeded", **_ended(pod, code, "Error")})
        self._gone(meta)
        await self._forget(uid)

    async def evict(self, pod: Json, why: str, message: str) -> None:
        """Evict a pod because the node is short of a resource; it stays on the list."""
        uid = pod["metadata"]["uid"]
        if task := self._tasks.pop(uid, None):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        container = self.containers[uid]
        container.kill()
        await container.ended()
        disruption = _condition("DisruptionTarget", "True", "TerminationByKubelet", message)
        self._change(
            pod,
            {
                "phase": "Failed",
                "reason": why,
                "message": message,
                "conditions": [disruption],
                **_ended(pod, 137, "Error"),
            },
        )

    async def drain(self, pod: Json) -> None:
        """End a pod with its own grace, as when its node is drained."""
        eviction_reason = "Eviction API: evicting"
        self._change(
            pod, {"conditions": [_condition("DisruptionTarget", "True", "EvictionByEvictionAPI", eviction_reason)]}
        )
        await self.delete(pod, pod["spec"]["terminationGracePeriodSeconds"])

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for uid, container in list(self.containers.items()):
            if container.started:
                container.kill()
                await container.ended()
            await self._forget(uid)

    def hasten(self, uid: str) -> None:
        """End at once a pod that is being deleted, because it was deleted again with less grace."""
        if container := self.containers.get(uid):
            container.kill()

    # --- one pod -----------------------------------------------------------------------------------------------

    async def _lead(self, pod: Json) -> None:
        await self._capacity(pod)
        self._change(pod, {"conditions": [_condition("PodScheduled", "True")], **_waiting(pod, "ContainerCreating")})
        await asyncio.sleep(0)
        await self._image(pod)
        uid = pod["metadata"]["uid"]
        container = Container(pod, self._folder / uid, self._groups, self.image)
        self.containers[uid] = container
        host = str(_NETWORK[next(self._addresses)])
        self._change(pod, {"hostIP": _HOST, "podIP": host, "podIPs": [{"ip": host}]})
        restarts, last, pause = 0, None, 0.0
        while True:
            container.lag = self.lag
            await container.start()
            began = now()
            state: Json = {"running": {"startedAt": began}}
            self._change(pod, {"phase": "Running", **_status(pod, state, restarts, last, ready=True)})
            code, memory = await container.ended()
            reason = "OOMKilled" if memory else "Completed" if code == 0 else "Error"
            last = {"terminated": {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": now()}}
            if not _again(pod, code):
                phase = "Succeeded" if code == 0 else "Failed"
                self._change(pod, {"phase": phase, **_status(pod, last, restarts, None)})
                return
            if pause:
                waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off {pause:g}s restarting"}}
                self._change(pod, _status(pod, waiting, restarts, last))
                await asyncio.sleep(pause)
            pause = pause * 2 or _BACK_OFF
            restarts += 1

    async def _capacity(self, pod: Json) -> None:
        """Wait until the node has capacity, and report that it lacks it."""
        wanted = quantity(pod["spec"]["containers"][0]["resources"]["requests"]["memory"])
        while wanted > self.memory:
            message = "0/1 nodes are available: 1 Insufficient memory. preemption: 0/1 nodes are available."
            self._change(pod, {"conditions": [_condition("PodScheduled", "False", "Unschedulable", message)]})
            await self._freed.wait()

    async def _image(self, pod: Json) -> None:
        image = pod["spec"]["containers"][0]["image"]
        pod_security = pod["spec"].get("securityContext") or {}
        if pod_security.get("runAsNonRoot") and not pod_security.get("runAsUser"):
            eviction_reason = "container has runAsNonRoot and image will run as root"
            self._change(pod, _waiting(pod, "CreateContainerConfigError", eviction_reason))
            await asyncio.Event().wait()
        while image not in self.images or self.pull_error:
            waiting_state = self.pull_error or (
                f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {image}: not found'
            )
            eviction_reason = f"rpc error: code = NotFound desc = {waiting_state}"
            self._change(pod, _waiting(pod, "ErrImagePull", eviction_reason))
            await asyncio.sleep(0.1)
            back_off = f'Back-off pulling image "{image}": ErrImagePull: {eviction_reason}'
            self._change(pod, _waiting(pod, "ImagePullBackOff", back_off))
            await asyncio.sleep(0.4)

    def _change(self, pod: Json, status: Json, meta: Json | None = None) -> None:
        name = pod["metadata"]["name"]
        try:
            held = copy.deepcopy(self.store.get("pods", pod["metadata"]["namespace"], name))
        except ApiError:
            return
        if held["metadata"]["uid"] != pod["metadata"]["uid"]:
            return
        status = dict(status)
        conditions = {one["type"]: one for one in held["status"].get("conditions") or []}
        conditions |= {one["type"]: one for one in status.pop("conditions", [])}
        held["status"] |= {**status, "conditions": list(conditions.values())}
        held["metadata"] |= meta or {}
        self.store.update("pods", held)

    def _gone(self, meta: Json) -> None:
        with suppress(ApiError):
            if self.store.get("pods", meta["namespace"], meta["name"])["metadata"]["uid"] == meta["uid"]:
                self.store.remove("pods", meta["namespace"], meta["name"])

    async def _forget(self, uid: str) -> None:
        container = self.containers.pop(uid, None)
        if container is not None:
            await container.forget()
        shutil.rmtree(self._folder / uid, ignore_errors=True)


def _again(pod: Json, code: int) -> bool:
    policy = pod["spec"].get("restartPolicy", "Always")
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _condition(type: str, status: str, reason: str = "", message: str = "") -> Json:
    found = {"type": type, "status": status, "lastProbeTime": None, "lastTransitionTime": now()}
    return found | ({"reason": reason, "message": message} if reason else {})


def _status(pod: Json, state: Json, restarts: int, last: Json | None, *, ready: bool = False) -> dict[str, Any]:
    container = pod["spec"]["containers"][0]
    one = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": restarts,
        "state": state,
        "lastState": last or {},
    }
    return {"containerStatuses": [one]}


def _waiting(pod: Json, reason: str, message: str = "") -> dict[str, Any]:
    waiting_state = {"reason": reason} | ({"message": message} if message else {})
    return _status(pod, {"waiting": waiting_state}, 0, None)


def _ended(pod: Json, code: int, reason: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()}}
    return _status(pod, state, 0, None)
