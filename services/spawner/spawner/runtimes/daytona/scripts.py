"""Portable shell scripts that run inside a sandbox, and parsers of their output. Pure.

Each start of a box's program is a run with a number N. The file `N.pid` identifies the run's supervising process,
`N.child` has the program's pid, and `N.exit` its exit status. All are written atomically.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spawner.runtimes.boxes.box_files import FOLDERS, ROOT
from spawner.runtimes.boxes.provider import ProgramEnd
from spawner.runtimes.boxes.script_output import parse_number

RUN: Final = f"{ROOT}/run"
"""The directory of these files."""
_MAX_DIGITS: Final = 9
"""A number with more digits was not written by our own scripts."""
_FUNCTIONS: Final = r"""
boot() { cat /proc/sys/kernel/random/boot_id 2>/dev/null; }
since() { sed "/) Z /d" "/proc/$1/stat" 2>/dev/null | cut -d" " -f22; }
kills() {
  cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null |
  sed -n "s/^oom_kill //p" | head -n 1
}
last() { ls "$1" 2>/dev/null | sed -n "s/^\([0-9]\{1,9\}\)\.pid$/\1/p" | sort -n | tail -n 1; }
part() { [ ! -f "$1" ] || head -c 200 "$1" 2>/dev/null | head -n 1; }
known() {
  pid= begun= booted= before=; number=$(last "$1"); [ -n "$number" ] || return 1
  read -r pid begun booted before <<END
$(part "$1/$number.pid")
END
  case $pid in ""|*[!0-9]*) pid=0 ;; esac; case $before in ""|*[!0-9]*) before=0 ;; esac
}
living() { [ -n "$begun" ] && [ "$(since "$pid")" = "$begun" ] && [ "$(boot)" = "$booted" ]; }
print_state() {
  known "$1" || { echo "runs 0"; return 0; }
  echo "runs $number"
  alive=; living && alive=1
  if [ -e "$1/$number.exit" ]; then
    echo "ended $(part "$1/$number.exit")"; [ ! -f "$1/$number.log" ] || tail -c 500 "$1/$number.log" | tail -n 1
  elif [ "$alive" ]; then echo alive
  else now=$(kills); [ "${now:-0}" -gt "$before" ] 2>/dev/null && echo "lost 1" || echo "lost 0"; fi
}
"""
"""The functions of the scripts below. `kills` prints how many processes the kernel has killed for lack of memory.

A process is identified by its pid, its start time and the kernel's boot id, because pids are reused. The agent may have
written the files: only the first line of a regular file is read. Whether the supervising process runs is determined
before the exit status is read, because a process that ends in between has written the status.
"""
SUPERVISE: Final = (
    _FUNCTIONS
    + r"""
run=$1; number=$2; . "$run/program"
before=$(kills)
echo "$$ $(since $$) $(boot) ${before:-0}" > "$run/.$number.$$"
ln "$run/.$number.$$" "$run/$number.pid" 2>/dev/null || { rm -f "$run/.$number.$$"; exit 0; }
rm -f "$run/.$number.$$"
"$@" > "$run/$number.log" 2>&1 < /dev/null &
child=$!
echo "$child" > "$run/.$number.child"; mv -f "$run/.$number.child" "$run/$number.child"
wait "$child"; code=$?
now=$(kills); killed=0; [ "${now:-0}" -gt "${before:-0}" ] && killed=1
echo "$code $killed" > "$run/.$number.exit"; mv -f "$run/.$number.exit" "$run/$number.exit"
"""
)
"""Supervises one run of the program in the file `program`.

The link `N.pid` can be created only once, so that of two processes that start the same run, one exits.
"""
READ_STATE: Final = _FUNCTIONS + 'print_state "$1"\n'
AWAIT_RUN: Final = (
    _FUNCTIONS
    + r"""
ticks=$3; until [ -e "$1/$2.pid" ] || [ "$ticks" -le 0 ]; do sleep 0.05; ticks=$((ticks - 1)); done
print_state "$1"
"""
)
"""Waits until a run has begun, for at most a number of twentieths of a second, and prints the state."""
STOP: Final = (
    _FUNCTIONS
    + r"""
run=$1; ticks=$2
until_ended() { while [ "$1" -gt 0 ] && living; do sleep 0.1; set -- $(($1 - 1)); done; }
known "$run" && living || { print_state "$run"; exit 0; }
set -- 50; while [ "$1" -gt 0 ] && [ ! -e "$run/$number.child" ]; do sleep 0.1; set -- $(($1 - 1)); done
child=$(part "$run/$number.child")
kill -TERM "$child" 2>/dev/null
until_ended "$ticks"
living && kill -KILL "$child" 2>/dev/null
until_ended 50
kill -KILL "-$pid" 2>/dev/null
print_state "$run"
"""
)
"""Requests the program to end, and kills it after its grace period, with the rest of its process group.

The program counts as ended when its supervising process has ended, because the agent may have written the files.
"""
RUN_COMMAND: Final = r"""
folder=$1; limit=$2; seconds=$3; shift 3
cd -- "$folder" || exit 126
exec 4>&1
code=$({ { timeout -k 1 "$seconds" "$@" 2>&1 3>&- 4>&- </dev/null; echo $? >&3; } |
  { head -c "$limit"; cat > /dev/null; } 3>&- | base64 >&4; } 3>&1)
exit "$code"
"""
"""Runs a command with a timeout, and prints its output up to a limit, in base64."""
SETUP: Final = r"""
root=$1 program=$2; shift 2
own() { [ -w "$1" ] || mkdir -p "$1" 2>/dev/null && [ -w "$1" ] || sudo -n sh -c 'mkdir -p "$1" && chown "$2" "$1"' \
  sh "$1" "$(id -u):$(id -g)" 2>/dev/null; [ -w "$1" ]; }
own "$root" || { echo "$(id -un 2>/dev/null || id -u) may not write to $root, and has no sudo"; exit 1; }
umask 077; for folder in "$@"; do mkdir -p "$root/$folder"; done
[ -x "$program" ] && { echo has; exit 0; }
own "$(dirname "$(dirname "$program")")" || { echo "the worker can't be written to $program"; exit 1; }
echo lacks
"""
"""Creates our directories, with `sudo` if necessary, and prints `has` or `lacks`: whether the program exists."""
UNPACK: Final = 'tar -xzf "$1" -C "$2" && rm -f "$1"'
MOVE_UPLOADS: Final = r"""
while [ $# -gt 0 ]; do
  mkdir -p "$(dirname -- "$3")" && chmod "$1" "$2" && mv -f -- "$2" "$3" || exit 1; shift 3
done
"""
"""Moves uploaded files, each atomically. The arguments for each: its mode, its uploaded path, its destination."""
LINK_FOR_DOWNLOAD: Final = r"""
[ -e "$1" ] || { echo none; exit 0; }
[ -f "$1" ] || { echo other; exit 0; }
[ "$(readlink -f -- "$1"; echo .)" = "$(printf '%s\n.' "$1")" ] || { echo other; exit 0; }
ln -f -- "$1" "$2" 2>/dev/null || cp -- "$1" "$2" || exit 1
echo "size $(wc -c < "$2")"
"""
"""Links or copies a file to a path that is safe in a header, and prints its size. Prints `other` for a file that is not
regular or whose path contains a symbolic link, and `none` for a missing one."""
DELETE: Final = 'rm -f -- "$1"'


@dataclass(frozen=True)
class DaytonaProgramState:
    """The state of a box's program, as `print_state` reports it."""

    runs: int
    end: ProgramEnd | None = None


def command_line(script: str, *arguments: str) -> str:
    """The command line that runs a script with these arguments, in any shell."""
    return shlex.join(["/bin/sh", "-c", script, "sh", *arguments])


def supervise(number: int) -> str:
    """The command line that starts a run, in its own session if `setsid` exists."""
    supervisor = command_line(SUPERVISE, RUN, str(number))
    return f"( cd {shlex.quote(f'{ROOT}/work')} && exec $(command -v setsid) {supervisor} )"


def program_file(program: Sequence[str]) -> bytes:
    """The content of the file `program`, with which `SUPERVISE` can start the program again."""
    return f"set -- {shlex.join(program)}\n".encode()


def setup(program: str) -> str:
    """The command line that runs `SETUP` for the path of a program."""
    return command_line(SETUP, ROOT, program, *FOLDERS, "run")


def parse_state(text: str) -> DaytonaProgramState:
    """Parse the output of `print_state`. Raises `ValueError` for anything else.

    An exit status that can't be parsed counts as an end with unknown status, because the agent may have overwritten it.
    """
    first, _, rest = text.strip().partition("\n")
    name, _, number = first.partition(" ")
    runs = parse_number(number, _MAX_DIGITS)
    if name != "runs" or runs is None:
        raise ValueError(text)
    state, _, output = rest.partition("\n")
    match state.split():
        case ["ended", *fields]:
            code, killed, *_ = [*fields, "", ""]
            reason = output.strip()[:500]
            status = parse_number(code, _MAX_DIGITS)
            return DaytonaProgramState(runs, ProgramEnd(status, out_of_memory=killed == "1", reason=reason))
        case ["lost", killed]:
            return DaytonaProgramState(
                runs, ProgramEnd(None, out_of_memory=killed == "1", reason="it ended without an exit status")
            )
    return DaytonaProgramState(runs)
