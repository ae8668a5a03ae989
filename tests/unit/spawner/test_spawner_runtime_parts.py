"""The pure parts of the process runtime: limits, command lines, environments, control groups, /proc."""

import asyncio
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sandherd_network import forwarder
from sandherd_network.policy import NetworkPolicy

from sandherd import processes
from sandherd.contracts.commands import CommandHarness, SandboxLimits, TaskSpec
from sandherd.contracts.names import UnsafeNameError
from spawner.runtimes import bubblewrap, cgroups, environment, kernel_limits, shim
from spawner.runtimes.boxes import box_files
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.isolation import IsolationLaunch
from spawner.runtimes.layout import Layout, SandboxDirectory
from spawner.runtimes.sized_disks import SizedDisks
from spawner.runtimes.worker_start import WorkerStarter
from tests.patience import PATIENCE
from tests.polling import eventually

STAT = "4242 (a (very) odd) name) S 17 4242 4200 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 5251072 1003"


def plan(**changes: object) -> SandboxPlan:
    given = {
        "project": "p1", "sandbox": "sbx-1", "task": "task-1", "attempt": 1, "fence": 7,
        "spec": TaskSpec(
            text="do it", harness=CommandHarness(argv=["true"]), env={"TOKEN": "hunter2"},
            secret_env=frozenset({"TOKEN"}),
        ),
        "unit": "sbx-1", "limits": SandboxLimits(),
        "joiner": "the joiner's seed", "nats_url": "nats://127.0.0.1:4222", "heartbeat_interval": 30, "stop_grace": 10,
    }  # fmt: skip
    return SandboxPlan(**{**given, **changes})  # type: ignore[arg-type]  # fields by name


def test_stat_line_is_read_with_any_program_name() -> None:
    """A program's name may contain anything; the start time distinguishes two processes of one number."""
    assert processes.read_stat(STAT) == {"pid": 4242, "parent": 17, "session": 4200, "started": 987654}
    for broken in ("", "12", "12 (x) S 1"):
        with pytest.raises(ValueError, match="stat"):
            processes.read_stat(broken)


def test_memory_is_limited_by_group_or_by_process() -> None:
    """Never by both: the group's kill is visible, the process's own limit is not."""
    requested = SandboxLimits(memory_mb=128, open_files=4096, processes=33)
    grouped = kernel_limits.for_processes(requested, hard_files=1000, memory_group=True, count_processes=False)
    assert (grouped.data_kib, grouped.open_files, grouped.processes) == (None, 1000, None)
    alone = kernel_limits.for_processes(requested, hard_files=10_000, memory_group=False, count_processes=True)
    assert (alone.data_kib, alone.open_files, alone.processes) == (128 * 1024, 4096, 33)
    assert kernel_limits.for_group(requested) == kernel_limits.GroupLimits(memory_bytes=128 * 1024 * 1024, processes=33)


def host(**changes: object) -> bubblewrap.HostFiles:
    given = {
        "bwrap": Path("/b/bwrap"), "system": (("/usr", None), ("/bin", "usr/bin")),
        "etc": (("/etc/hosts", "/etc/hosts"),),
        "python": ("/opt/venv",), "masked": ("/proc/kcore",), "read_only": ("/proc/sys",), "hidden": (),
    }  # fmt: skip
    return bubblewrap.HostFiles(**{**given, **changes})  # type: ignore[arg-type]  # fields by name


def pairs(line: list[str], option: str) -> list[tuple[str, str]]:
    return [(line[n + 1], line[n + 2]) for n, word in enumerate(line) if word == option]


def test_only_the_sandbox_itself_is_writable() -> None:
    """Everything of the host is bound read-only; namespaces are its own; capabilities are gone."""
    line = bubblewrap.argv(
        host(),
        SandboxDirectory(Path("/h/sbx-1")),
        mounts={"cgroup": Path("/g")},
        info=3,
        command=["worker"],
        sources=bubblewrap.DirectSources(),
    )
    assert [target for _, target in pairs(line, "--bind")] == [
        f"/sandbox/{name}" for name in ("work", "state", "home", "previous")
    ]
    assert ("/proc/sys", "/proc/sys") in pairs(line, "--ro-bind")
    assert ("/dev/null", "/proc/kcore") in pairs(line, "--ro-bind")
    assert ("/g", "/sandbox/cgroup") in pairs(line, "--ro-bind")
    assert {"--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"} <= set(line)
    assert "--unshare-net" not in line
    assert line[-2:] == ["--", "worker"]


def test_paths_below_a_visible_root_are_hidden() -> None:
    """The stack's home is covered only where it would be visible."""
    line = bubblewrap.argv(
        host(hidden=("/opt/venv/home", "/srv/home")),
        SandboxDirectory(Path("/h/sbx-1")),
        mounts={},
        info=None,
        command=["worker"],
        sources=bubblewrap.DirectSources(),
    )
    covered = [line[n + 1] for n, word in enumerate(line) if word == "--tmpfs"]
    assert "/opt/venv/home" in covered
    assert "/srv/home" not in covered


def test_the_sdks_of_agents_are_read_only_with_their_interpreters(tmp_path: Path) -> None:
    """What is installed when the sandbox starts is bound at one place; an interpreter that is seen anyway is not."""
    toolchains = tmp_path / "toolchains"
    place = SandboxDirectory(Path("/h/sbx-1"))

    def bound() -> list[tuple[str, str]]:
        given = host(toolchains=toolchains, python=(str(tmp_path / "venv"),))
        line = bubblewrap.argv(
            given, place, mounts={}, info=None, command=["worker"], sources=bubblewrap.DirectSources()
        )
        return pairs(line, "--ro-bind")

    assert not [pair for pair in bound() if pair[1] == "/sandbox/toolchains"]
    for kind, base in (("claude", tmp_path / "venv"), ("openhands", tmp_path / "python-3.12")):
        (toolchains / kind / "bin").mkdir(parents=True)
        (base / "bin").mkdir(parents=True)
        (base / "bin" / "python").touch()
        (toolchains / kind / "bin" / "python").symlink_to(base / "bin" / "python")
    assert (str(toolchains), "/sandbox/toolchains") in bound()
    roots = [source for source, target in bound() if source == target]
    assert str(tmp_path / "python-3.12") in roots
    assert roots.count(str(tmp_path / "venv")) == 1
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "bin").mkdir(parents=True)
    (elsewhere / "bin" / "python").touch()
    (toolchains / "acp").symlink_to(elsewhere)
    assert (str(elsewhere), str(elsewhere)) in bound()


@pytest.mark.parametrize("isolated", [True, False])
def test_worker_gets_the_path_of_its_toolchains(isolated: bool, tmp_path: Path) -> None:
    """The path is the one inside the sandbox; without the setting there is none."""
    groups = cgroups.ControlGroups(None, None, 1)
    launch = IsolationLaunch(host(), None) if isolated else None
    starting = WorkerStarter(("worker",), launch, groups, True, SizedDisks(tmp_path, 0), toolchains=tmp_path)
    found = starting.variables(SandboxDirectory(Path("/h/sbx-1")), plan())
    assert found["SANDHERD_TOOLCHAINS"] == ("/sandbox/toolchains" if isolated else str(tmp_path))
    without = replace(starting, toolchains=None).variables(SandboxDirectory(Path("/h/sbx-1")), plan())
    assert "SANDHERD_TOOLCHAINS" not in without


@pytest.mark.parametrize("inside", [True, False])
def test_no_secret_is_in_environment_or_command_line(inside: bool) -> None:
    """The credential and the task's own secrets travel in files."""
    place = SandboxDirectory(Path("/h/sbx-1"))
    found = environment.variables(plan(), environment.paths(place, inside=inside), group=None, lost=137)
    everything = "\n".join([*found, *found.values()])
    assert "hunter2" not in everything
    assert "seed" not in everything
    assert found["SANDHERD_LOST_SIGNAL"] == "9"
    assert found["SANDHERD_STATE_DIR"] == ("/sandbox/state" if inside else "/h/sbx-1/state")
    assert not {"SANDHERD_HOME", "SANDHERD_IDENTITY_DIR", "DATABASE_URL"} & found.keys()


def test_kernel_switches_are_found_by_their_modes(tmp_path: Path) -> None:
    """Whatever in /proc has a file that its owner may write is covered, also what no list of ours names."""
    (tmp_path / "sys" / "kernel").mkdir(parents=True)
    (tmp_path / "sys" / "kernel" / "core_pattern").touch(0o644)
    (tmp_path / "new_switch").touch(0o600)
    (tmp_path / "version").touch(0o444)
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "mem").touch(0o600)
    assert bubblewrap.kernel_switches(tmp_path) == (str(tmp_path / "new_switch"), str(tmp_path / "sys"))


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    """Groups are created below our own, in each existing hierarchy; a missing one does not affect the others."""
    own = "4:memory:/mine\n8:pids:/\n0::/\n"
    (tmp_path / "memory" / "mine" / "herd").mkdir(parents=True)
    (tmp_path / "memory" / "mine" / "herd" / "memory.limit_in_bytes").touch()
    groups = cgroups.open_groups("herd", tmp_path, own)
    assert groups.memory == tmp_path / "memory" / "mine" / "herd"
    assert groups.pids is None
    (groups.memory / "sbx-1").mkdir()
    (groups.memory / "sbx-1" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert groups.oom_kills("sbx-1") == 3


def test_control_groups_of_version_2(tmp_path: Path) -> None:
    """Groups are created where the kernel allows it; the limits and the count of kills have other names."""
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    (tmp_path / "mine").mkdir()
    groups = cgroups.open_groups("herd", tmp_path, "0::/mine\n")
    assert groups.memory == groups.pids == tmp_path / "mine" / "herd"
    groups.make("sbx-1", kernel_limits.for_group(SandboxLimits(memory_mb=64, processes=9)))
    folder = tmp_path / "mine" / "herd" / "sbx-1"
    assert (folder / "memory.max").read_text() == str(64 * 1024 * 1024)
    assert (folder / "pids.max").read_text() == "9"
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert groups.oom_kills("sbx-1") == 2
    assert groups.is_freeze_requested("sbx-1") is None
    for frozen in (True, False):
        groups.set_frozen("sbx-1", frozen)
        assert groups.is_freeze_requested("sbx-1") is frozen


def test_names_lead_nowhere_else(tmp_path: Path) -> None:
    """A sandbox's name is checked before it becomes a path."""
    layout = Layout(tmp_path / "sandboxes", tmp_path / "kept")
    for name in ("..", "a/b", "", ".", "sbx-1\n"):
        with pytest.raises(UnsafeNameError):
            layout.directory(name)


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    """What an agent linked to outside its work tree stays."""
    layout = Layout(tmp_path / "sandboxes", tmp_path / "kept")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    place = layout.directory("sbx-1")
    place.make()
    (place.work / "link").symlink_to(outside)
    layout.remove("sbx-1")
    assert not place.exists()
    assert (outside / "precious").exists()


def test_quarantined_directory_contains_no_secret(tmp_path: Path) -> None:
    """The task with its secrets and keys are removed, whatever an agent made of them; spool and log remain."""
    layout = Layout(tmp_path / "sandboxes", tmp_path / "kept")
    place = layout.directory("sbx-1")
    place.make()
    (tmp_path / "precious").touch()
    place.write_secret(place.task, "hunter2")
    place.joiner.mkdir()
    (place.joiner / "seed").touch()
    (place.state / "worker.nk").symlink_to(tmp_path / "precious")
    (place.folder / "run" / "task.json.0123456789abcdef").write_text("hunter2")
    (place.state / "spool").mkdir()
    place.state.chmod(0)
    stored = layout.quarantine("sbx-1")
    assert sorted(entry.name for entry in (stored / "state").iterdir()) == ["spool"]
    assert not list((stored / "run").iterdir())
    assert (tmp_path / "precious").exists()
    layout.unquarantine("sbx-1")
    assert (place.state / "spool").is_dir()


def test_unclaimed_run_is_reused(tmp_path: Path) -> None:
    """A start that failed half-way does not count as a life of the worker."""
    place = Layout(tmp_path, tmp_path / "kept").directory("sbx-1")
    place.make()
    first = place.new_run()
    assert place.new_run() == first
    first.claim.write_text("")
    assert place.new_run().folder.name == "1"
    assert shim.read_claim(first) is None
    assert shim.read_exit(first) is None


def test_last_line_of_a_log_is_valid_text(tmp_path: Path) -> None:
    """NUL, which no event may contain, and invalid UTF-8 are replaced."""
    place = Layout(tmp_path, tmp_path / "kept").directory("sbx-1")
    place.make()
    run = place.new_run()
    run.log.write_bytes(b"first\nno\0such\xff module\n")
    assert shim.read_last_line(run) == "no?such\N{REPLACEMENT CHARACTER} module"


@pytest.mark.parametrize(
    ("codes", "kills", "expected"),
    [
        ([137], 1, (137, True, None)),
        ([0], 1, (0, False, None)),
        ([5, 0], 1, (0, False, 5)),
        ([None, 0], 1, (0, True, None)),
        ([137, 0], 0, (0, False, 137)),
    ],
)
def test_oom_kill_of_a_command_is_not_the_workers(
    tmp_path: Path, codes: list[int | None], kills: int, expected: tuple[int, bool, int | None]
) -> None:
    """An OOM kill counts only if the worker was killed or its exit status is unknown, also after a recovery."""
    place = Layout(tmp_path, tmp_path / "kept").directory("sbx-1")
    place.make()
    for code in codes:
        run = place.new_run()
        run.claim.write_text("")
        run.exit.write_text("" if code is None else f"{code}\n")
    end = shim.read_end(place.runs(), oom_kills=kills)
    assert (end.code, end.out_of_memory, end.recovered_code) == expected


def test_forwarder_is_restarted_only_during_its_run(tmp_path: Path) -> None:
    """A forwarder that always fails leaves no process behind the shim."""
    place = Layout(tmp_path, tmp_path / "kept").directory("sbx-1")
    place.make()
    run, failing = place.new_run(), tmp_path / "forwarder.py"
    failing.write_text("raise SystemExit(1)")
    allowed = kernel_limits.ProcessLimits(open_files=64, cpu_seconds=60, data_kib=None, processes=None)
    line = shim.argv(run, place.work, allowed, [], ["true"], forwarder=failing)
    subprocess.run(line, stdout=subprocess.PIPE, timeout=60, check=True)
    assert shim.read_exit(run) == 0


async def test_forwarder_of_a_removed_run_ends(tmp_path: Path) -> None:
    """The sandbox ended before the forwarder looked, and its run was removed at once."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "network.json").write_text(NetworkPolicy(mode="none").to_json())
    started = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", forwarder.__file__, str(folder))
    await eventually((folder / "log").exists, "it waits for the sandbox")
    shutil.rmtree(folder)
    try:
        async with asyncio.timeout(PATIENCE):
            assert await started.wait() == 0
    finally:
        if started.returncode is None:
            started.kill()


def test_a_directory_in_place_of_a_secret_is_replaced(tmp_path: Path) -> None:
    """An agent owns the directory of its state: what it plants there does not prevent its recovery."""
    place = SandboxDirectory(tmp_path / "sbx-1")
    place.make()
    (place.previous_file / "below").mkdir(parents=True)
    place.write_secret(place.previous_file, "offered")
    assert place.previous_file.read_text() == "offered"
    assert [path.name for path in place.state.iterdir()] == [place.previous_file.name]


def test_a_box_has_the_files_with_which_its_worker_connects() -> None:
    """The box has the TLS files of its plan and their variables; without any in the plan it has none."""
    texts = {"NATS_CA": "an authority", "NATS_CERT": "a certificate", "NATS_KEY": "a key"}
    files = {file.path.rpartition("/")[2]: file for file in box_files.files(plan(tls=texts))}
    environment_file = json.loads(files["environment.json"].content)
    for name, text in texts.items():
        assert files[environment_file[name].rpartition("/")[2]].content == text.encode()
        assert environment_file[name] == files[environment_file[name].rpartition("/")[2]].path
    without = {file.path.rpartition("/")[2]: file for file in box_files.files(plan())}
    assert not json.loads(without["environment.json"].content).keys() & texts.keys()


def test_a_sandbox_of_the_host_has_them_too_and_loses_the_key_at_its_end(tmp_path: Path) -> None:
    """Only its owner reads them; the key is deleted with the other credentials."""
    starting = WorkerStarter(("worker",), None, cgroups.ControlGroups(None, None, 1), True, SizedDisks(tmp_path, 0))
    place, texts = SandboxDirectory(tmp_path / "sbx-1"), {"NATS_CA": "an authority", "NATS_KEY": "a key"}
    starting.set_up(place, plan(tls=texts))
    environment_file = starting.variables(place, plan(tls=texts))
    for name, text in texts.items():
        assert Path(environment_file[name]).read_text() == text
        assert Path(environment_file[name]).stat().st_mode & 0o777 == 0o600
    place.delete_secrets()
    assert not Path(environment_file["NATS_KEY"]).exists()
