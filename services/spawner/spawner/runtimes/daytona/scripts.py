"""What is run inside of a sandbox, as scripts for any shell there is, and what their answers mean. All pure.

Each start of a box's program is a run with a number. `N.pid` says who looks after it, `N.child` who it is, and `N.exit`
how it ended; none of them is ever half written.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spawner.runtimes.boxes.furnishing import FOLDERS, ROOT
from spawner.runtimes.boxes.provider import ProgramEnd

RUN: Final = f"{ROOT}/run"
ENDED: Final = frozenset({124, 137, 143})
"""What `timeout` of coreutils and of busybox ends with when it had to end the command; a command may do so itself."""
_DIGITS: Final = 10
"""More than any number has that our own scripts write."""
_SHARED: Final = r"""
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
tell() {
  known "$1" || { echo "runs 0"; return 0; }
  echo "runs $number"
  if [ -e "$1/$number.exit" ]; then
    echo "ended $(part "$1/$number.exit")"; [ ! -f "$1/$number.log" ] || tail -c 500 "$1/$number.log" | tail -n 1
  elif living; then echo alive
  else now=$(kills); [ "${now:-0}" -gt "$before" ] 2>/dev/null && echo "lost 1" || echo "lost 0"; fi
}
"""
"""A process is known by its number, when it began, and since when its kernel runs: numbers are given out again.

What lies there may be the agent's: no more is read of it than a line, and nothing that is no file.
"""
KEEPER: Final = (
    _SHARED
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
"""Looks after one run of what the file `program` says.

The link can be made once: of two that are told to start a run, one does nothing.
"""
LOOK: Final = _SHARED + 'tell "$1"\n'
AWAIT: Final = (
    _SHARED
    + 'ticks=$3; until [ -e "$1/$2.pid" ] || [ "$ticks" -le 0 ]; do sleep 0.05; ticks=$((ticks - 1)); done; tell "$1"\n'
)
STOP: Final = (
    _SHARED
    + r"""
run=$1; ticks=$2
until_ended() { while [ "$1" -gt 0 ] && living; do sleep 0.1; set -- $(($1 - 1)); done; }
known "$run" && living || { tell "$run"; exit 0; }
set -- 50; while [ "$1" -gt 0 ] && [ ! -e "$run/$number.child" ]; do sleep 0.1; set -- $(($1 - 1)); done
child=$(part "$run/$number.child")
kill -TERM "$child" 2>/dev/null
until_ended "$ticks"
living && kill -KILL "$child" 2>/dev/null
until_ended 50
kill -KILL "-$pid" 2>/dev/null
tell "$run"
"""
)
"""Asks the program to end, and ends it when its time is over, with what is left of its group.

Whether it has ended its keeper says by being gone: a file may say so that the agent has written.
"""
BOUNDED: Final = r"""
folder=$1; limit=$2; seconds=$3; shift 3
cd -- "$folder" || exit 126
exec 4>&1
code=$({ { timeout -k 1 "$seconds" "$@" 2>&1 3>&- 4>&- </dev/null; echo $? >&3; } |
  { head -c "$limit"; cat > /dev/null; } 3>&- | base64 >&4; } 3>&1)
exit "$code"
"""
"""Runs a command for a time, and says the beginning of what it said in a form that no byte is lost in."""
SETUP: Final = r"""
root=$1 program=$2; shift 2
own() { [ -w "$1" ] || mkdir -p "$1" 2>/dev/null && [ -w "$1" ] || sudo -n sh -c 'mkdir -p "$1" && chown "$2" "$1"' \
  sh "$1" "$(id -u):$(id -g)" 2>/dev/null; [ -w "$1" ]; }
own "$root" || { echo "$(id -un 2>/dev/null || id -u) may not write to $root, and has no sudo"; exit 1; }
umask 077; for folder in "$@"; do mkdir -p "$root/$folder"; done
[ -x "$program" ] && { echo has; exit 0; }
own "$(dirname "$(dirname "$program")")" || { echo "the worker may not be put to $program"; exit 1; }
echo lacks
"""
UNPACK: Final = 'tar -xzf "$1" -C "$2" && rm -f "$1"'
PLACE: Final = r"""
while [ $# -gt 0 ]; do
  mkdir -p "$(dirname -- "$3")" && chmod "$1" "$2" && mv -f -- "$2" "$3" || exit 1; shift 3
done
"""
"""Of each file its mode, where it was brought to, and where it belongs. None is ever seen half."""
OFFER: Final = r"""
[ -e "$1" ] || { echo none; exit 0; }
[ -f "$1" ] || { echo other; exit 0; }
[ "$(readlink -f -- "$1"; echo .)" = "$(printf '%s\n.' "$1")" ] || { echo other; exit 0; }
ln -f -- "$1" "$2" 2>/dev/null || cp -- "$1" "$2" || exit 1
echo "size $(wc -c < "$2")"
"""
"""Gives a file a name that can stand in any header; not one that a link leads to, of whatever folder."""
DROP: Final = 'rm -f -- "$1"'


@dataclass(frozen=True)
class Life:
    """How a box's program stands, as seen from inside."""

    runs: int
    end: ProgramEnd | None = None


def line(script: str, *words: str) -> str:
    """The command line that runs a script with these words, whichever shell reads it."""
    return shlex.join(["/bin/sh", "-c", script, "sh", *words])


def keeper(number: int) -> str:
    """The command line that starts a run, out of reach of what ends its session."""
    started = line(KEEPER, RUN, str(number))
    return f"( cd {shlex.quote(f'{ROOT}/work')} && exec $(command -v setsid) {started} )"


def program_file(program: Sequence[str]) -> bytes:
    """What `KEEPER` reads: so a program can be started again by whoever was not told what it is."""
    return f"set -- {shlex.join(program)}\n".encode()


def setup(program: str) -> str:
    """The command line that makes the folders, and says whether the program is there."""
    return line(SETUP, ROOT, program, *FOLDERS, "run")


def life(text: str) -> Life:
    """What `tell` has said. Raises `ValueError` for anything else.

    An end that can't be read is one all the same: the agent may have written anything there.
    """
    first, _, rest = text.strip().partition("\n")
    word, _, number = first.partition(" ")
    runs = _number(number)
    if word != "runs" or runs is None:
        raise ValueError(text)
    told, _, last = rest.partition("\n")
    match told.split():
        case ["ended", *said]:
            code, killed, *_ = [*said, "", ""]
            return Life(runs, ProgramEnd(_number(code), out_of_memory=killed == "1", reason=last.strip()[:500]))
        case ["lost", killed]:
            return Life(runs, ProgramEnd(None, out_of_memory=killed == "1", reason="it is gone without a word"))
    return Life(runs)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None
