"""Receives a sandbox's push as if the sandbox had saved the commits. The spawner checks and pushes them as usual.

The pack of the push becomes a bundle. So all rules for saved commits also apply to pushed ones, even after a crash: the
checks of objects, approvals of paths, limits of size, signatures, a push by compare-and-set of one branch, and events.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Final

from sandherd.contracts.events import EventData
from spawner.git_proxy import proxy_decisions
from spawner.git_proxy.exchange import HttpError, RequestBody
from spawner.git_proxy.push_protocol import (
    MAX_COMMANDS,
    ProtocolError,
    PushCommands,
    RefUpdate,
    advertisement,
    bundle_head,
    commands_of,
    refusals,
    report,
)
from spawner.live_state import LiveState
from spawner.records.base_record import StoreUnavailableError
from spawner.repositories import branch_transitions as of_branch
from spawner.repositories.branch_artifacts import BUNDLE, BranchArtifacts
from spawner.repositories.branch_record import BranchRecord, ReceivedCommits
from spawner.repositories.mirror_paths import scratch_folder

_RESULT_TIMEOUT_SECONDS: Final = 120.0
"""The time that a client waits for the result of its push."""
BranchNow = Callable[[], Awaitable[BranchRecord]]
"""Returns the present branch. Raises `HttpError` if the sandbox may no longer push to it."""


class PushReceiver:
    """Receives pushes. `folder`: that of the mirrors, beside which packs are stored, because they may be large."""

    def __init__(self, live: LiveState, artifacts: BranchArtifacts, folder: Path) -> None:
        self._live, self._artifacts, self._folder = live, artifacts, folder
        self._changed: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        live.branch_index.on_change(self._on_branch)

    def refs(self, branch: BranchRecord) -> bytes:
        """The advertisement of the ref that can be pushed. Raises `HttpError`."""
        if (problem := proxy_decisions.refusal(branch)) is not None:
            raise HttpError(403, problem)
        return advertisement(branch.branch, proxy_decisions.head_of(branch))

    async def push(self, branch_now: BranchNow, sandbox: str, task: str, body: RequestBody) -> bytes:
        """Receive a push, and return its report. Raises `HttpError`."""
        branch = await branch_now()
        try:
            pushed = commands_of(await body.lines(MAX_COMMANDS))
        except ProtocolError as error:
            await self._publish_refusal(branch, sandbox, str(error))
            raise HttpError(400, str(error)) from None
        if not pushed.updates:
            return b""  # git checks whether it may push before it sends a large pack
        if refused := await self._refusal_report(branch, sandbox, pushed):
            return refused
        return await self._store(branch_now, sandbox, task, pushed, body)

    async def _refusal_report(self, branch: BranchRecord, sandbox: str, pushed: PushCommands) -> bytes | None:
        """The report of a push that is refused, whose event it publishes; None if the push is not refused."""
        refused = refusals(pushed, branch.branch, proxy_decisions.head_of(branch))
        if (problem := proxy_decisions.refusal(branch)) is not None:
            refused = {one.ref: problem for one in pushed.updates}
        if not refused:
            return None
        await self._publish_refusal(branch, sandbox, "; ".join(f"{ref}: {reason}" for ref, reason in refused.items()))
        self._live.meters.count("sandherd_git_proxy_refusals_total", reason="ref")
        return report(pushed, refused)

    async def _store(
        self, branch_now: BranchNow, sandbox: str, task: str, pushed: PushCommands, body: RequestBody
    ) -> bytes:
        """Store the pack as a bundle, and return the push's report as soon as its result is known."""
        update = pushed.updates[0]
        with scratch_folder(self._folder) as folder:
            file = folder / "bundle"
            with file.open("wb") as content:
                await _write(update, body, content)
            # Receiving a pack may take long. Meanwhile the sandbox may have ended, or the branch moved.
            branch = await branch_now()
            if refused := await self._refusal_report(branch, sandbox, pushed):
                return refused
            bundle = await self._artifacts.store(file, branch.project, task, BUNDLE)
        commits = ReceivedCommits(sandbox=sandbox, task=task, commit=update.new, bundle=bundle, partial=True)
        problem = await self._result(branch.key, commits)
        return report(pushed, {update.ref: problem} if problem else {})

    async def _result(self, key: str, commits: ReceivedCommits) -> str | None:
        """Request that the commits are added and pushed. Returns why the forge does not have them, or None."""
        with self._watch(key) as changed:
            now = self._live.now()
            before = await self._change(key, partial(of_branch.received, commits=commits, now=now))
            try:
                async with asyncio.timeout(_RESULT_TIMEOUT_SECONDS):
                    while (result := self._known_result(key, commits)) is None:
                        await changed.wait()
                        changed.clear()
            except TimeoutError:
                known = self._live.branch_index.get(key)
                return proxy_decisions.late_message(known.view if known else None, commits)
        after = self._live.branch_index.get(key)
        old = proxy_decisions.superseded_bundle(before, after.view) if before and after else None
        for bundle in (commits.bundle, old):
            with suppress(StoreUnavailableError):  # the result is known, and a bundle that remains expires
                await self._artifacts.delete(bundle)
        return result.problem

    def _known_result(self, key: str, commits: ReceivedCommits) -> proxy_decisions.PushResult | None:
        known = self._live.branch_index.get(key)
        if known is None:
            return proxy_decisions.PushResult("the branch was deleted")
        return proxy_decisions.result_of(known.view, commits)

    async def _publish_refusal(self, branch: BranchRecord, sandbox: str, reason: str) -> None:
        event: EventData = proxy_decisions.refused_event(branch, sandbox, reason)
        await self._change(branch.key, lambda record: record.with_events(self._live.now(), event))

    async def _change(self, key: str, decide: Callable[[BranchRecord], BranchRecord]) -> BranchRecord | None:
        held = await self._live.change_branch(key, decide)
        return held.record if held is not None else None

    @contextmanager
    def _watch(self, key: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the branch changes."""
        changed = asyncio.Event()
        self._changed[key].add(changed)
        try:
            yield changed
        finally:
            self._changed[key].discard(changed)
            if not self._changed[key]:
                del self._changed[key]

    def _on_branch(self, key: str, _branch: BranchRecord) -> None:
        for changed in self._changed.get(key, ()):
            changed.set()


async def _write(update: RefUpdate, body: RequestBody, file: IO[bytes]) -> None:
    file.write(bundle_head(update))
    await body.into(file)
