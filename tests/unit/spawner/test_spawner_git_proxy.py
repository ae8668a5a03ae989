"""The git proxy's decisions: what is read of a request, who may push what, and what a client learns of its push."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import ExitStack
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.repositories import Repository
from sandherd.contracts.states import TASK_ENDED, BranchState, SandboxState, TaskState
from sandherd.settings import Settings
from spawner.git_proxy import exchange, proxy_decisions
from spawner.git_proxy.exchange import HttpError, RequestBody
from spawner.git_proxy.push_protocol import (
    MAX_COMMANDS,
    NO_COMMIT,
    ProtocolError,
    advertisement,
    bundle_head,
    commands_of,
    content_length,
    pkt_line,
    refusals,
    report,
)
from spawner.git_proxy.routes import GitRoute, Service, password_of, route_of
from spawner.git_proxy.server import GitProxy
from spawner.repositories import branch_transitions as of_branch
from spawner.runtimes.network import Networks
from spawner.sandboxes.git_proxy_access import TOKEN, GitProxyAccess, ProxyTokens
from tests.unit.spawner.test_spawner_branch_transitions import BUNDLE, COMMIT, NOW, OTHER, RECEIVED, branch
from tests.unit.spawner.test_spawner_plans import planned

URL = "http://127.0.0.1:9402"
OWN = "refs/heads/feature/x"
PUSHED = RECEIVED.model_copy(update={"partial": True, "bundle": BUNDLE.model_copy(update={"artifact": "b"})})


def body(*parts: bytes, limit: int = 1024, compressed: bool = False) -> RequestBody:
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    waiting = iter([*messages, {"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        return next(waiting)

    return RequestBody(receive, limit, compressed=compressed)


async def test_lines_and_the_rest_of_a_body_are_read_however_it_is_cut() -> None:
    """Each byte may arrive alone. The pack follows the flush packet."""
    sent = pkt_line(b"one") + pkt_line(b"two") + b"0000" + b"PACK"
    for parts in ([sent], [sent[at : at + 1] for at in range(len(sent))]):
        cut, rest = body(*parts), BytesIO()
        assert await cut.lines(2) == [b"one", b"two"]
        assert await cut.into(rest) == 4
        assert rest.getvalue() == b"PACK"


async def test_malformed_lines_are_refused() -> None:
    """A length may be invalid, too large or reserved; there may be too many lines, or an end within a line."""
    for head in (b"0001", b"0002", b"0003", b"0004", b"fff1", b"FFFF", b"+0a1", b" 0a1", b"0x10"):
        with pytest.raises(ProtocolError):
            content_length(head)
    assert content_length(b"fff0") == 65_516
    for sent in (pkt_line(b"x") * (MAX_COMMANDS + 1) + b"0000", b"00ffx", b"00"):
        with pytest.raises(ProtocolError):
            await body(sent, limit=4096).lines(MAX_COMMANDS)


async def test_body_has_a_maximum_also_if_it_was_compressed() -> None:
    """A small body that expands is decompressed only up to the limit. A second gzip member is refused."""
    packer = zlib.compressobj(wbits=31)
    bomb = packer.compress(bytes(64 * 1024 * 1024)) + packer.flush()
    for sent, compressed, status in ((bytes(1025), False, 413), (bomb, True, 413), (b"no", True, 400)):
        with pytest.raises(HttpError) as refused:
            await body(sent, compressed=compressed).whole()
        assert refused.value.status == status
    small = zlib.compressobj(wbits=31)
    packed = small.compress(b"0000") + small.flush()
    assert await body(packed, compressed=True).whole() == b"0000"
    with pytest.raises(HttpError):
        await body(packed + packed, compressed=True).whole()


async def test_body_that_does_not_arrive_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has its own timeout."""
    monkeypatch.setattr(exchange, "_IDLE_SECONDS", 0.01)

    async def silent() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    receive: Callable[[], Awaitable[MutableMapping[str, Any]]] = silent
    with pytest.raises(HttpError) as refused:
        await RequestBody(receive, 10, compressed=False).whole()
    assert refused.value.status == 408


def test_push_may_continue_its_branch_and_nothing_else() -> None:
    """A push has one ref, at the advertised commit. Otherwise each of its refs is refused with a reason."""
    good = f"{COMMIT} {OTHER} {OWN}".encode()
    pushed = commands_of([good + b"\0 report-status agent=git/2"])
    assert refusals(pushed, "feature/x", COMMIT) == {}
    assert report(pushed, {}) == pkt_line(b"unpack ok\n") + pkt_line(f"ok {OWN}\n".encode()) + b"0000"
    assert bundle_head(pushed.updates[0]) == f"# v2 git bundle\n-{COMMIT}\n{OTHER} {OWN}\n\n".encode()
    bad = (
        f"{COMMIT} {OTHER} refs/heads/main", f"{NO_COMMIT} {OTHER} {OWN}/x", f"{NO_COMMIT} {OTHER} {OWN}x",
        f"{NO_COMMIT} {OTHER} refs/heads/feature", f"{NO_COMMIT} {OTHER} refs/tags/v1", f"{NO_COMMIT} {OTHER} {OWN}",
        f"{COMMIT} {NO_COMMIT} {OWN}", f"{OTHER} {COMMIT} {OWN}", f"{COMMIT} {OTHER} refs/heads/FEATURE/X",
    )  # fmt: skip
    for text in bad:
        for lines in ([text.encode()], [text.encode() + b"\0", good], [good + b"\0", text.encode()]):
            refused = refusals(commands_of(lines), "feature/x", COMMIT)
            assert set(refused) == {one.split(b"\0")[0].decode().split()[2] for one in lines}, text
            assert all(refused.values())
    assert refusals(commands_of([good, good]), "feature/x", COMMIT)
    assert commands_of([]).updates == ()


@pytest.mark.parametrize(
    "sent",
    [
        b"push-cert\0 report-status",
        f"shallow {COMMIT}".encode(),
        f"{COMMIT} {OTHER} HEAD".encode(),
        f"{COMMIT} {OTHER} {OWN} x".encode(),
        f"{COMMIT} {OTHER} {OWN}\nx".encode(),
        f"{COMMIT.upper()} {OTHER} {OWN}".encode(),
        f"{COMMIT} {OTHER} {OWN}\0 atomic".encode(),
        f"{COMMIT} {OTHER} {OWN}\0 push-options".encode(),
        f"{COMMIT} {OTHER} {OWN}\0 object-format=sha256".encode(),
    ],
)
def test_command_that_was_not_advertised_is_refused(sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        commands_of([sent])


def test_reason_is_one_line() -> None:
    """A forge or a file's name may be a part of it, so it has no line feeds and no control characters."""
    pushed = commands_of([f"{COMMIT} {OTHER} {OWN}\0report-status".encode()])
    shown = report(pushed, {OWN: "no\n0000ok refs/heads/main\x1b[2J" + "x" * 1000})
    assert shown.count(b"\n") == 2
    assert b"\x1b" not in shown
    assert len(shown) < 500
    assert advertisement("feature/x", COMMIT).count(b"refs/") == 1


def test_routes_are_the_four_of_git() -> None:
    """The path is read as it was sent, with the name of one service and the content type of that."""
    lists = (b"/p1/sbx-1.git/info/refs", b"service=git-upload-pack", "")
    assert route_of("GET", *lists) == GitRoute("p1", "sbx-1", Service.FETCH, lists=True)
    kind = "application/x-git-receive-pack-request"
    assert route_of("POST", b"/p1/sbx-1/git-receive-pack", b"", kind) == GitRoute(
        "p1", "sbx-1", Service.PUSH, lists=False
    )
    for method, path, query, content in (
        ("POST", *lists),
        ("GET", b"/p1/sbx-1.git/info/refs", b"", ""),
        ("GET", b"/p1/sbx-1.git/info/refs", b"service=git-upload-pack&x", ""),
        ("GET", b"/p1/sbx-1.git/info/refs", b"service=git-upload-archive", ""),
        ("GET", b"/p1/../p1/sbx-1.git/info/refs", lists[1], ""),
        ("GET", b"/p1/sbx-1.git/../info/refs", lists[1], ""),
        ("GET", b"/p1/sbx%2d1.git/info/refs", lists[1], ""),
        ("GET", b"/p1/sbx-1.git/info/refs\n", lists[1], ""),
        ("GET", b"http://other/p1/sbx-1.git/info/refs", lists[1], ""),
        ("POST", b"/p1/sbx-1.git/git-receive-pack", b"x", kind),
        ("POST", b"/p1/sbx-1.git/git-upload-pack", b"", kind),
        ("PUT", b"/p1/sbx-1.git/git-receive-pack", b"", kind),
        ("GET", b"/p1/sbx-1.git/info/lfs/objects/batch", b"", ""),
    ):
        assert route_of(method, path, query, content) is None, (method, path, query)


def test_credential_is_of_one_sandbox() -> None:
    """It is not valid for another sandbox, a project whose name has the separator, or another herd."""
    tokens = ProxyTokens.of("seed")
    token = tokens.token("p1", "sbx-1")
    assert tokens.accepts("p1", "sbx-1", token)
    for project, sandbox in (("p1", "sbx-2"), ("p2", "sbx-1")):
        assert not tokens.accepts(project, sandbox, token)
    assert not ProxyTokens.of("other").accepts("p1", "sbx-1", token)
    assert not tokens.accepts("p1", "sbx-1", "")
    assert token not in repr(tokens)
    assert password_of([b"Basic eDp5"]) == "y"
    for headers in ([], [b"Basic eDp5", b"Basic eDp5"], [b"Bearer y"], [b"Basic !"], [b"Basic " + b"e" * 2000]):
        assert password_of(headers) is None


def test_only_the_sandbox_at_work_on_a_task_that_wants_it_may_use_it() -> None:
    """A sandbox may not use it if it stops, has ended or is of an earlier attempt, or if its task has ended."""
    spec = TaskSpec(
        text="x", harness=CommandHarness(argv=["true"]), repository=Repository(url="https://h/a/b", git_proxy=True)
    )
    task: Any = SimpleNamespace(sandbox="sbx-1", branch="br-1", whole_spec=spec, state=TaskState.RUNNING)

    def sandbox(state: SandboxState, name: str = "sbx-1") -> Any:
        return SimpleNamespace(sandbox=name, state=state)

    found = {state for state in SandboxState if proxy_decisions.usable_branch(sandbox(state), task)}
    assert found == {SandboxState.SPAWNING, SandboxState.RUNNING}
    running = sandbox(SandboxState.RUNNING)
    assert proxy_decisions.usable_branch(running, task) == "br-1"
    assert proxy_decisions.usable_branch(sandbox(SandboxState.RUNNING, "sbx-2"), task) is None
    assert proxy_decisions.usable_branch(running, None) is None
    for ended in TASK_ENDED:
        assert proxy_decisions.usable_branch(running, SimpleNamespace(**vars(task) | {"state": ended})) is None  # type: ignore[arg-type]  # a double of a task's record
    plain = spec.model_copy(update={"repository": Repository(url="https://h/a/b")})
    assert proxy_decisions.usable_branch(running, SimpleNamespace(**vars(task) | {"whole_spec": plain})) is None  # type: ignore[arg-type]  # a double of a task's record


def test_sandbox_gets_the_proxy_only_if_its_task_wants_it() -> None:
    """It gets variables for git after the task's own, the credential as a secret, and access in its network."""
    settings = Settings(git_proxy_url=f"{URL}/")
    repository = Repository(url="https://git.example.org/team/shop.git", git_proxy=True)
    plan, record = planned(settings, repository=repository, env={"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b"})
    assert plan.git_proxy == URL
    assert plan.spec.env["GIT_CONFIG_COUNT"] == "3"
    assert plan.spec.env["GIT_CONFIG_KEY_0"] == "a.b"
    assert plan.spec.env["GIT_CONFIG_KEY_1"] == f"url.{URL}/p1/sbx-1.insteadOf"
    assert plan.spec.env["GIT_CONFIG_VALUE_1"] == "https://git.example.org/team/shop"
    assert plan.spec.env[TOKEN] == ProxyTokens.of("seed").token("p1", "sbx-1")
    assert TOKEN in plan.spec.secret_env
    assert [name for name, value in plan.spec.env.items() if plan.spec.env[TOKEN] in value] == [TOKEN]
    assert plan.spec.env[TOKEN] not in record.model_dump_json()
    own = Networks(mode="none").policy(None, "nats://127.0.0.1:4222", plan.git_proxy)
    assert [(one.host, one.port) for one in own.endpoints] == [("127.0.0.1", 4222), ("127.0.0.1", 9402)]
    for wanted, there in ((Repository(url="https://h/a/b"), settings), (repository, Settings())):
        plain, _ = planned(there, repository=wanted)
        assert plain.git_proxy is None
        assert TOKEN not in plain.spec.env
    assert GitProxyAccess.of(Settings(), "seed") is None
    hostile, _ = planned(settings, repository=repository, env={"GIT_CONFIG_COUNT": "9" * 5000})
    assert hostile.spec.env["GIT_CONFIG_COUNT"] == "2"


def test_client_learns_whether_the_forge_has_its_commits() -> None:
    """It learns nothing before the spawner has decided. The reason of a refusal or of a delay is shown."""
    waiting = branch(received=(PUSHED,))
    assert proxy_decisions.result_of(waiting, PUSHED) is None
    refused = of_branch.refused(waiting, PUSHED, "too large", NOW)
    assert proxy_decisions.result_of(refused, PUSHED) == proxy_decisions.PushResult("commits refused: too large")
    saved = branch(received=(), commit=OTHER, push_wanted=True)
    assert proxy_decisions.result_of(saved, PUSHED) is None
    assert proxy_decisions.result_of(of_branch.pushed(saved, OTHER, NOW), PUSHED) == proxy_decisions.PushResult()
    blocked = proxy_decisions.result_of(of_branch.needs_approval(saved, ("a.yml",), NOW), PUSHED)
    assert blocked is not None
    assert "a user has to approve" in (blocked.problem or "")
    signed = branch(received=(), commit="d" * 40, unsigned=OTHER, pushed="d" * 40)
    assert proxy_decisions.result_of(signed, PUSHED) == proxy_decisions.PushResult()
    assert proxy_decisions.head_of(signed) == signed.base_commit
    assert proxy_decisions.head_of(saved) == OTHER
    assert "as soon as possible" in proxy_decisions.late_message(saved, PUSHED)
    assert proxy_decisions.refusal(branch()) is None
    for closed in (branch(push=False), branch(state=BranchState.DELETED), branch(delete_wanted="here")):
        assert proxy_decisions.refusal(closed)


def test_push_and_save_of_one_sandbox_both_get_their_result() -> None:
    """A save replaces an earlier save, which it contains, but no push: its client waits. A push replaces nothing."""
    later = RECEIVED.model_copy(update={"bundle": BUNDLE.model_copy(update={"artifact": "c"})})
    both = of_branch.received(branch(), PUSHED, NOW)
    assert both.received == (RECEIVED, PUSHED)
    assert of_branch.received(both, later, NOW).received == (PUSHED, later)


def test_pushes_of_a_sandbox_have_a_quota() -> None:
    """Further pushes are admitted later, and another sandbox is not affected."""
    quota = proxy_decisions.PushQuota()
    admitted = [quota.admit("a", now) is not None for now in range(25)]
    assert admitted == [True] * 20 + [False] * 5
    assert quota.admit("b", 25)
    assert quota.admit("a", 601)
    later = [now for now in range(1000, 86_400, 100) if quota.admit("a", now)]
    assert len(later) == 79
    assert quota.admit("a", 86_401)


def test_bytes_of_the_pushes_of_a_sandbox_have_a_quota() -> None:
    """All projects share the stream of packs, so a sandbox may push as many bytes as it may publish."""
    quota, gib = proxy_decisions.PushQuota(), 2**30
    first = quota.admit("a", 0)
    assert first is not None
    first.size = gib // 4
    assert quota.left("a", 1) == gib - gib // 4
    first.size = gib
    assert quota.admit("a", 1) is None
    assert quota.left("b", 1) == gib
    assert quota.admit("b", 1)
    assert quota.admit("a", 601)


def test_refusals_are_reported_once_a_minute_with_their_number() -> None:
    """Each pair of sandbox and reason is counted, at most 1,000 pairs: a path may name any sandbox."""
    reports = proxy_decisions.RefusalReports()
    assert [reports.due("p.a", "ref", now) for now in (0, 1, 59, 60, 61)] == [1, None, None, 3, None]
    assert reports.due("p.a", "limit", 61) == reports.due("p.b", "ref", 61) == 1
    many = [reports.due(f"p.{number}", "path", 62) for number in range(2000)]
    assert many.count(1) == 997
    assert reports.due("p.c", "ref", 7200) == 1, "after an hour there are places again"


async def test_requests_of_a_project_leave_places_for_others() -> None:
    """Many sandboxes of one project, each with its maximum of slow requests, do not delay another project."""
    proxy = GitProxy(Mock(), Mock(), Mock(), Mock(), max_push=1)
    with ExitStack() as stack:
        for number in range(16):
            stack.enter_context(proxy._place("p1", f"sbx-{number // 2}"))
        for project, sandbox in (("p1", "sbx-0"), ("p1", "sbx-9")):
            with pytest.raises(HttpError), proxy._place(project, sandbox):
                pass
        stack.enter_context(proxy._place("p2", "sbx-0"))
    with proxy._place("p1", "sbx-0"):
        pass


def test_bundle_of_an_earlier_push_is_superseded() -> None:
    """Each bundle has the whole branch, so only the last one is needed. A bundle of a sandbox or in use remains."""

    def stored(owner: str, name: str) -> ArtifactRef:
        return BUNDLE.model_copy(update={"artifact": name, "subject": f"sandherd.v1.artifact.p1.{owner}.{name}"})

    old, new = stored("task-1", "a"), stored("task-1", "b")
    assert proxy_decisions.superseded_bundle(branch(bundle=old), branch(bundle=new)) == old
    assert proxy_decisions.superseded_bundle(branch(bundle=stored("sbx-1", "a")), branch(bundle=new)) is None
    for after in (branch(bundle=old), branch(), branch(bundle=new, origin=old)):
        assert proxy_decisions.superseded_bundle(branch(bundle=old), after) is None
    assert proxy_decisions.superseded_bundle(branch(), branch(bundle=new)) is None


def test_fetches_of_a_sandbox_have_a_quota() -> None:
    """A sandbox in a loop does not use up the herd's limit at the forge. Another sandbox is not affected."""
    quota = proxy_decisions.FetchQuota()
    assert [quota.admit("a", 0) for _ in range(601)] == [True] * 600 + [False]
    assert quota.admit("b", 0)
    assert not quota.admit("a", 599)
    assert quota.admit("a", 600)
