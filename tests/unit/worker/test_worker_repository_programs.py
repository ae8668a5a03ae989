"""What an agent's repository has git run: it sees no secret, and delays nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.repository import branch_saver
from tests.unit.worker.agent_tree import SECRET, AgentTree, files

HOSTILE = """
dump='env > "$OUT/$$.env"; ls -l /proc/$$/fd > "$OUT/$$.fd"; cat >/dev/null 2>&1 || true'
mkdir -p .git/hooks
for hook in pre-commit commit-msg post-commit reference-transaction post-index-change post-checkout pre-auto-gc; do
  printf '#!/bin/sh\\nexport OUT=%s; echo '$hook' >> %s/hooks; %s\\n' "$OUT" "$OUT" "$dump" > .git/hooks/$hook
  chmod +x .git/hooks/$hook
done
printf '#!/bin/sh\\nexport OUT=%s; echo fsmonitor >> %s/hooks; %s\\n' "$OUT" "$OUT" "$dump" > .git/monitor
printf '#!/bin/sh\\nexport OUT=%s; echo filter >> %s/ran; env > %s/$$.env; ls -l /proc/$$/fd > %s/$$.fd; cat\\n' \
  "$OUT" "$OUT" "$OUT" "$OUT" > .git/filter
chmod +x .git/monitor .git/filter
git config core.fsmonitor "$PWD/.git/monitor"
git config core.hooksPath "$PWD/.git/hooks"
git config filter.spy.clean "$PWD/.git/filter"
git config filter.spy.smudge "$PWD/.git/filter"
git config gpg.program "$PWD/.git/monitor"
git config commit.gpgSign true
git config credential.helper "$PWD/.git/monitor"
git config core.sshCommand "$PWD/.git/monitor"
git config core.editor "$PWD/.git/monitor"
git config core.pager "$PWD/.git/monitor"
git config core.askPass "$PWD/.git/monitor"
git config diff.external "$PWD/.git/monitor"
echo '* filter=spy' > .gitattributes
rm -f "$OUT"/*
echo 1 > new
"""


async def test_programs_of_the_repository_see_no_secret(
    tree: AgentTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks do not run at all; a filter runs, without variables and descriptors of the worker or the task."""
    monkeypatch.setenv("SANDHERD_CREDENTIALS", "/secret/place")
    monkeypatch.setenv("A_SECRET", SECRET)
    out = tmp_path / "out"
    out.mkdir()
    await tree.check_out(env={"API_KEY": SECRET}, secret_env=["API_KEY"])
    tree.agent(f"export OUT={out};" + HOSTILE)
    saved = await tree.saved()
    assert saved.left_out is None
    assert files(tree.received(saved)) == [".gitattributes", ".gitignore", "README.md", "new", "src/a.py"]
    assert (out / "ran").exists(), "the filter has run: this test sees what such a program sees"
    assert not (out / "hooks").exists(), (out / "hooks").read_text()
    variables = "".join(path.read_text() for path in out.glob("*.env"))
    assert SECRET not in variables
    assert not {"API_KEY", "NATS", "CREDENTIALS", "TASK_FILE"} & {
        name for name in ("API_KEY", "NATS", "CREDENTIALS", "TASK_FILE") if name in variables
    }
    descriptors = "".join(path.read_text() for path in out.glob("*.fd"))
    assert "socket:" not in descriptors
    assert str(tree.resources.assignment.state_dir / "spool") not in descriptors


async def test_process_that_a_filter_leaves_behind_is_ended(
    tree: AgentTree, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """A process is ended even if it has its own session and holds git's output open."""
    await tree.check_out()
    pid = tmp_path / "pid"
    script = f"#!/bin/sh\nsetsid sh -c 'echo $$ > {pid}; exec sleep 600' >/dev/null &\ncat\n"
    (tree.work / ".git/filter").write_text(script)
    (tree.work / ".git/filter").chmod(0o755)
    tree.agent("git config filter.spy.clean $PWD/.git/filter; echo 'new filter=spy' > .gitattributes; echo 1 > new")
    assert (await tree.saved()).committed_rest
    process = int(pid.read_text())
    await eventually(lambda: not Path(f"/proc/{process}").exists(), "its end")


async def test_filter_that_never_ends_is_ended_in_time(
    tree: AgentTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filter is ended, and the commits are saved without the uncommitted changes."""
    monkeypatch.setattr(branch_saver, "COMMIT_SECONDS", 8.0)  # a slow machine starts the filter in it
    await tree.check_out()
    (tree.work / ".git/filter").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    (tree.work / ".git/filter").chmod(0o755)
    tree.agent("echo 1 > one; git add .; git commit -qm One")
    tree.agent("git config filter.spy.clean $PWD/.git/filter; echo 'new filter=spy' > .gitattributes; echo 1 > new")
    saved = await tree.saved()
    assert (saved.commits, saved.committed_rest) == (1, False)
    assert "what was not committed: it took longer than 8 s" in (saved.left_out or "")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


async def test_late_save_is_reported_and_its_processes_ended(tree: AgentTree, tmp_path: Path) -> None:
    """When saving's share of the grace period is over, its processes are ended, also a filter that never ends."""
    await tree.check_out()
    (tree.work / ".git/filter").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    (tree.work / ".git/filter").chmod(0o755)
    tree.agent("git config filter.spy.clean $PWD/.git/filter; echo 'new filter=spy' > .gitattributes; echo 1 > new")
    object.__setattr__(tree.resources.assignment, "stop_grace", 1.0)
    tree.resources.stop.terminate()
    saved = await tree.saved()
    assert (saved.bundle, saved.left_out) == (None, "the sandbox had to end before the branch was saved")
    pid = tmp_path / "pid"
    assert not pid.exists() or not Path(f"/proc/{pid.read_text().strip()}").exists()
