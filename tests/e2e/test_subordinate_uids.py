"""An ordinary user's stack, if the user has subordinate uids: each sandbox has one of them.

Invariant: no process of a sandbox has the uid of the user, of root, or of another sandbox, whatever happens to the
spawner; and when the stack has ended, all that is left in its home belongs to the user.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from spawner.runtimes.network import FORWARDER
from tests.engines.ordinary_user import OrdinaryUser, ids_of
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can be an ordinary user for a while"),
]
DENIED = "Operation not permitted"
"""The error of an operation on another user's process."""
HOSTILE = """
import os, shutil
shutil.copy('/bin/sh', 'sh'); os.chmod('sh', 0o6755); os.chmod('.', 0o777)
for level in range(1500):
    os.mkdir('deep'); os.chdir('deep')
open('last', 'w').close(); os.chmod('.', 0)
"""


@dataclass
class Stack:
    """The stack of an ordinary user."""

    user: OrdinaryUser
    program: Path
    """The command, run as the user."""
    server: int
    """The process id of the server whose forks are the commands."""

    @property
    def home(self) -> Path:
        return self.user.home / ".sandherd"

    def stdout_of(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def document(self, *words: str) -> Any:
        return json.loads(self.run(*words, "-o", "json").stdout)

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end. Processes that it leaves may continue to write: nothing waits for that."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            line = [str(self.program), "--home", str(self.home), *words]
            done = subprocess.run(
                line, env=self.user.environment(), stdout=out, stderr=err, check=False, cwd="/",
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(line, done.returncode, out.read(), err.read())

    def sandbox(self) -> "Sandbox":
        name = self.stdout_of("sandboxes", "create").splitlines()[-1].split()[0]
        return Sandbox(self, name)

    def processes(self) -> dict[int, list[str]]:
        """The processes of the user and its sandboxes, except the server of commands, with their command lines."""
        return {pid: words for pid, words in self.user.processes().items() if pid != self.server}

    def pid(self, part: str) -> int:
        """Wait until a part of the stack runs; returns its process id."""
        found: list[int] = []

        def runs() -> bool:
            found[:] = [one["pid"] for one in self.document("status")["parts"] if one["name"] == part and one["pid"]]
            return bool(found)

        eventually(runs)
        return found[0]


@dataclass
class Sandbox:
    stack: Stack
    name: str

    @property
    def folder(self) -> Path:
        return self.stack.home / "sandboxes" / self.name

    @property
    def uid(self) -> int:
        return int((self.folder / "run" / "uid").read_text())

    def run(self, *words: str) -> str:
        return self.stack.stdout_of("exec", self.name, "--", *words)

    def python(self, code: str) -> str:
        return self.run(sys.executable, "-c", code)

    def processes(self) -> set[int]:
        """All processes with the sandbox's uid on the host."""
        return {pid for pid in psutil.pids() if whose(pid) == {self.uid}}


def whose(pid: int) -> set[int]:
    """Every uid and gid of a process."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return set()
    return {int(number) for line in lines if line.startswith(("Uid:", "Gid:")) for number in line.split()[1:]}


def is_inside(pid: int) -> bool:
    """Whether a process is in another pid namespace than this one; false if it has ended in the meantime."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat() != Path("/proc/self/ns/pid").stat()
    except OSError:
        return False


def words_of(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended in the meantime."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def rights(pid: int) -> set[int]:
    """The capability sets of a process, except the bounding set."""
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    return {int(line.split()[1], 16) for line in lines if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb"))}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A running stack."""
    with stack_of(OrdinaryUser(folder())) as stack:
        stack.stdout_of("up")
        yield stack


@contextmanager
def stack_of(user: OrdinaryUser) -> Iterator[Stack]:
    """The stack of this user, which is ended, and its command, as forks of a process of the user."""
    programs = user.folder / "c"
    programs.mkdir()
    os.chown(programs, user.uid, user.uid)
    try:
        with preloaded(programs, user.line, user.environment()) as (program, server):
            stack = Stack(user, program, server)
            yield stack
            stack.run("down")
    finally:
        user.remove()


@pytest.fixture
def own_stack() -> Iterator[Stack]:
    """A stack that the test starts and ends."""
    with stack_of(OrdinaryUser(folder(), 1, ids_of(1))) as stack:  # the other stack still runs
        yield stack


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)  # noqa: TID251  # a condition of other processes


def folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="joe-"))
    made.chmod(0o755)
    return made


def test_each_sandbox_has_its_own_subordinate_uid(stack: Stack) -> None:
    """Worker, entered commands and files: no two sandboxes share a uid, and it is not root's or the user's."""
    one, other = stack.sandbox(), stack.sandbox()
    assert len({one.uid, other.uid, stack.user.uid, 0}) == 4
    assert all(sandbox.uid in (stack.user.ids or ()) for sandbox in (one, other))
    for sandbox in (one, other):
        assert sandbox.processes()
        doctor = sandbox.run("sh", "-c", "touch made; id -u; grep -c '^Cap.*[[:space:]]0*$' /proc/self/status")
        assert doctor.split() == ["1000", "5"]
        assert (sandbox.folder / "work" / "made").stat().st_uid == sandbox.uid
        below = {child.pid for child in psutil.Process(shim_of(sandbox)).children(recursive=True)}
        inside = {pid for pid in below if is_inside(pid)}
        assert inside, below
        assert all(whose(pid) in ({sandbox.uid}, set()) for pid in inside)
        (forwarder,) = [pid for pid in below if words_of(pid)[3:4] == [str(FORWARDER)]]
        assert whose(forwarder) == {sandbox.uid}
        assert rights(forwarder) == rights(max(inside)) == {0}


def test_runtimes_and_doctor_state_subordinate_uids(stack: Stack) -> None:
    """The column, the check and the only remaining gap are shown."""
    (runtime,) = stack.document("runtimes")["runtimes"]
    assert runtime["host_uid"] == "subordinate"
    assert not any("own uid" in gap for gap in runtime["gaps"])
    assert any("inotify" in gap for gap in runtime["gaps"])
    doctor = stack.run("doctor").stdout
    assert "has a subordinate uid of the spawner's user" in doctor, doctor


def test_sandbox_uid_reaches_no_other_sandbox_and_not_the_user(stack: Stack) -> None:
    """That uid outside of any namespace, as after a fault in all of them, can't signal, trace, or read a file."""
    one, other = stack.sandbox(), stack.sandbox()
    other.run("sh", "-c", "echo secret >work-of-mine; chmod 644 work-of-mine; chmod 755 .")
    foreign = {*other.processes(), stack.pid("spawner"), stack.pid("nats")}
    assert len(foreign) > 2
    as_one = ["setpriv", f"--reuid={one.uid}", f"--regid={one.uid}", "--clear-groups"]
    for pid in foreign:
        for words in (["kill", "-0", str(pid)], ["cat", f"/proc/{pid}/environ"], ["readlink", f"/proc/{pid}/root"]):
            done = subprocess.run([*as_one, "env", "LC_ALL=C", *words], capture_output=True, text=True, check=False)
            assert done.returncode != 0, (words, done)
    stored = (other.folder / "work" / "work-of-mine", stack.home / "context.json", stack.user.home)
    for path in stored:
        done = subprocess.run([*as_one, "ls", str(path)], capture_output=True, text=True, check=False)
        assert "Permission denied" in done.stderr, done


def test_agent_cannot_become_the_user(stack: Stack) -> None:
    """Changing the uid, a setuid program and a namespace fail; and no program there has capabilities."""
    sandbox, user = stack.sandbox(), stack.user.uid
    found = json.loads(
        sandbox.python(
            f"""
import ctypes, json, os, shutil
libc = ctypes.CDLL(None, use_errno=True)
def tried(act):
    try:
        act()
    except OSError as error:
        return error.errno
    return 0
def call(*words):
    return 0 if libc.syscall(*words) == 0 else ctypes.get_errno()
shutil.copy('/bin/sh', 'sh'); os.chmod('sh', 0o6755)
print(json.dumps({{
    'root': tried(lambda: os.setresuid(0, 0, 0)), 'user': tried(lambda: os.setresuid({user}, {user}, {user})),
    'group': tried(lambda: os.setresgid({user}, {user}, {user})), 'groups': tried(lambda: os.setgroups([{user}])),
    'give': tried(lambda: os.chown('sh', {user}, -1)),
    'space': call(272 if os.uname().machine == 'x86_64' else 97, 0x10000000),
    'map': open('/proc/self/uid_map').read().split()[::2],
}}))
"""
        )
    )
    assert found.pop("map") == ["1000", "1"]
    assert all(found.values()), found
    assert "\t1\n" in sandbox.run("grep", "NoNewPrivs", "/proc/self/status") + "\n"
    assert (sandbox.folder / "work" / "sh").stat().st_uid == sandbox.uid


def test_restarted_spawner_adopts_its_sandboxes(stack: Stack) -> None:
    """The spawner joins their namespace: they run on, commands run in them, new ones start, all are removed."""
    before = stack.sandbox()
    uid, processes = before.uid, before.processes()
    spawner = stack.pid("spawner")
    os.kill(spawner, signal.SIGKILL)
    eventually(lambda: stack.pid("spawner") != spawner)
    stack.stdout_of("up")
    assert before.run("id", "-u") == "1000"
    assert before.processes() >= processes
    for verb in ("pause", "resume"):
        stack.stdout_of("sandboxes", verb, before.name)
    assert before.run("id", "-g") == "1000"
    after = stack.sandbox()
    assert after.uid not in {uid, stack.user.uid, 0}
    shims = [Path(f"/proc/{shim_of(one)}/ns/user").readlink() for one in (before, after)]
    assert {*shims} == {Path(f"/proc/{stack.pid('spawner')}/ns/user").readlink()}
    for sandbox in (before, after):
        end(stack, sandbox)
    reserved = stack.user.home / ".local/state/sandherd/uids"
    assert not (reserved / str(uid)).exists()


def end(stack: Stack, sandbox: Sandbox) -> None:
    """Terminate the process, and wait until nothing is left of it."""
    processes = sandbox.processes()
    stack.stdout_of("sandboxes", "terminate", sandbox.name)
    eventually(lambda: not sandbox.folder.exists() and not any(whose(pid) for pid in processes))


def shim_of(sandbox: Sandbox) -> int:
    return int((sandbox.folder / "run" / "0" / "claim").read_text().split()[1])


def test_stopped_stack_leaves_only_files_of_the_user(own_stack: Stack) -> None:
    """After `up`, `run` and `down` there is no process and no foreign file, and the home can be removed.

    No setuid file of an agent has become the user's. Afterwards `up` starts sandboxes again. If supervisor and spawner
    are killed then, `down` joins the namespace, and nothing is left either.
    """
    stack = own_stack
    stack.stdout_of("up")
    assert "completed" in stack.stdout_of("run", "one", "--", "sh", "-c", "echo done >it")
    sandbox = stack.sandbox()
    sandbox.python(HOSTILE)
    stack.stdout_of("down")
    eventually(lambda: not stack.processes())  # the parent of the supervisor notices its end last
    foreign = subprocess.run(
        ["find", str(stack.user.home), "!", "-user", str(stack.user.uid)], capture_output=True, text=True, check=True
    )
    assert not foreign.stdout
    setuid = subprocess.run(
        ["find", str(stack.user.home), "-perm", "/6000"], capture_output=True, text=True, check=True
    )
    assert not setuid.stdout
    assert (sandbox.folder / "work" / "sh").exists()
    stack.stdout_of("up")
    killed = stack.sandbox()
    assert killed.uid in (stack.user.ids or ())
    for pid in (stack.document("status")["supervisor_pid"], stack.pid("spawner")):
        os.kill(pid, signal.SIGKILL)
    assert killed.processes()
    stack.stdout_of("down")
    eventually(lambda: not stack.processes())
    assert (killed.folder / "work").stat().st_uid == stack.user.uid
    removed = stack.user.run("sh", "-c", f"chmod -R u+rwx {stack.home} && rm -r {stack.home}")
    assert removed.returncode == 0, removed.stderr
    assert not stack.home.exists()
