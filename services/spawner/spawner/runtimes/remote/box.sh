# Runs inside a box, through its agent server, which can run a command but does not supervise long-running programs.
# The first argument is the function to call. All files of Sandherd are below $root; $run has the program's state.
root=/sandherd
run=$root/run

fields_of() { # state ppid pgrp session ... of a process; nothing if it has ended
  line=
  read -r line <"/proc/$1/stat" || return 1
  printf '%s\n' "${line##*) }"
} 2>/dev/null

field_of() { # the field $2 of process $1
  set -- "$2" $(fields_of "$1")
  shift "$1" 2>/dev/null && printf '%s\n' "$1"
}

ancestors() { # the pids of process $1 and of its ancestors, which are processes of the agent server
  pid=$1
  while [ "${pid:-0}" -gt 1 ]; do
    printf '%s ' "$pid"
    pid=$(field_of "$pid" 2)
  done
  printf '1 '
}

box_processes() { # the pids of all processes except those of the agent server and of these scripts
  all=$(echo /proc/[0-9]*)
  apart=' '
  for found in $(grep -lsa sandherd-control /proc/[0-9]*/cmdline); do # after $all, so that a process started in between is in neither list
    found=${found#/proc/}
    apart="$apart$(field_of "${found%/cmdline}" 4) "
  done
  for found in $all; do
    found=${found#/proc/}
    case " $server" in *" $found "*) continue ;; esac
    set -- $(fields_of "$found")
    case "${1:-Z}" in Z | X) continue ;; esac
    case "$apart" in *" $4 "*) continue ;; esac
    printf '%s ' "$found"
  done
}

settled_processes() { # those listed twice, because a process that the agent server has just forked does not look like one of these scripts yet
  first=" $(box_processes)"
  for again in $(box_processes); do
    case "$first" in *" $again "*) printf '%s ' "$again" ;; esac
  done
}

send() { # send signal $1 to all processes of the box, until each has received it; $2: the states of a process that has received it
  tries=50
  while [ $tries -gt 0 ]; do
    left=
    for pid in $(settled_processes); do
      case "$2" in *"$(field_of "$pid" 1)"*) continue ;; esac
      left="$left $pid"
    done
    [ -n "$left" ] || return 0
    kill "-$1" $left 2>/dev/null
    tries=$((tries - 1))
    [ $tries -gt 45 ] || sleep 0.05
  done
}

write() { # file $1 with content $2, atomically
  printf '%s\n' "$2" >"$run/$1.new" && mv "$run/$1.new" "$run/$1"
}

is_supervised() { # whether the supervisor runs; after a restart another process may have its pid
  [ -s $run/keeper ] || return 1
  read -r pid born <$run/keeper
  case "$(field_of "$pid" 1)" in '' | Z | X) return 1 ;; esac
  [ "$(field_of "$pid" 20)" = "$born" ] && grep -qsa sandherd-control "/proc/$pid/cmdline"
}

killed_for_memory() {
  cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null | grep '^oom_kill '
}

folder() { # create a folder that this user may write to, with sudo if the image allows that
  mkdir -p "$1" 2>/dev/null
  [ -w "$1" ] && return 0
  sudo -n install -d -m 755 -o "$(id -u)" -g "$(id -g)" "$1" 2>/dev/null && return 0
  echo "its user can't write to $1" >&2
  exit 3
}

until_ended() { # wait for at most $1 twentieths of a second
  left=$1
  while [ ! -e $run/end ] && [ "$left" -gt 0 ]; do
    is_supervised || return 0
    sleep 0.05
    left=$((left - 1))
  done
}

handles_sigterm() { # whether process $1 catches, blocks or ignores SIGTERM: bit 14
  while read -r name mask; do
    case "$name" in SigBlk: | SigIgn: | SigCgt:) ;; *) continue ;; esac
    mask=${mask%???}
    case "${mask#"${mask%?}"}" in [4-7c-f]) return 0 ;; esac
  done <"/proc/$1/status"
  return 1
} 2>/dev/null

until_handling() { # wait up to a second until a program that has just started handles SIGTERM
  left=20
  while [ ! -e $run/end ] && [ $left -gt 0 ]; do
    [ -s $run/pid ] && handles_sigterm "$(cat $run/pid)" && return 0
    sleep 0.05
    left=$((left - 1))
  done
}

prepare() { # create our folders; prints 'exists' if the program $1 exists
  folder $root
  umask 077
  for name in state work home previous run; do mkdir -p "$root/$name"; done
  [ -e $run/made ] || write made "$(date +%s)"
  command -v "$1" >/dev/null && echo exists
  true
}

unpack() { # unpack the worker, uploaded as the archive $2, into $1
  folder "$1"
  cd "$1" && tar -xzf "$2" && rm -f "$2"
}

place() { # move files uploaded as $1/0, $1/1 ... to the following paths, with the mode after each path
  from=$1
  number=0
  shift
  umask 077
  while [ $# -ge 2 ]; do
    mkdir -p "$(dirname -- "$1")" && chmod "$2" "$from/$number" && mv -f -- "$from/$number" "$1" || exit 4
    number=$((number + 1))
    shift 2
  done
  rm -rf "$from"
}

launch() { # start the program, unless it was started before ($1 = first) or runs ($1 = again)
  [ -s $run/program ] || { echo 'its files do not exist' >&2; exit 44; }
  exec 9>$run/lock
  flock 9
  [ "$1" = first ] && [ -e $run/runs ] && exit 0
  [ ! -e $run/end ] && is_supervised && exit 0
  rm -f $run/end $run/frozen $run/keeper $run/pid
  write runs $(($(cat $run/runs 2>/dev/null || echo 0) + 1))
  setsid /bin/sh -c "$SANDHERD_SCRIPT" sandherd-control supervise "$(ancestors $PPID)" </dev/null >/dev/null 2>&1 9>&- &
  write keeper "$! $(field_of $! 20)"
}

supervise() { # start the program, and record how it ended
  server=$1
  before=$(killed_for_memory)
  cd $root/work && rm -f $run/said.pipe && mkfifo $run/said.pipe
  { head -c 65536 >$run/said; cat >/dev/null; } <$run/said.pipe &
  setsid /bin/sh $run/program </dev/null >$run/said.pipe 2>&1 &
  program=$!
  write pid $program
  wait $program
  code=$?
  send KILL ''
  [ "$(killed_for_memory)" = "$before" ] && write end $code || write end "$code memory"
}

state() { # print the state; the supervisor is checked first, because it has recorded the program's end when it has ended
  cd $run 2>/dev/null || exit 0
  exec 9>>lock
  flock -s 9
  is_supervised && echo supervised
  for name in made runs end; do [ -s $name ] && echo "$name $(cat $name)"; done
  [ -s labels ] && echo "labels $(head -n 1 labels)"
  for name in frozen aside; do [ -e $name ] && echo "$name"; done
  [ -s said ] && echo "output $(tail -n 1 said | head -c 500 | tr -d '\0')"
  true
}

stop() { # end the program, with a grace period of $1 twentieths of a second
  is_supervised || { send KILL ''; exit 0; } # an agent may have killed the supervisor, and still run
  until_handling
  kill -TERM "$(cat $run/pid)" 2>/dev/null
  until_ended "$1"
  [ -e $run/end ] || send KILL ''
  until_ended 200
  rm -f $run/aside # only the agent itself can have marked a box that runs
}

program_runs() {
  [ ! -e $run/end ] && is_supervised && return 0
  echo 'its program does not run' >&2
  exit 5
}

freeze() {
  program_runs
  : >$run/frozen
  send STOP 'Tt'
}

thaw() {
  program_runs
  for pid in $(box_processes); do
    case "$(field_of "$pid" 1)" in T) kill -CONT "$pid" ;; esac
  done
  rm -f $run/frozen
}

mark() { : >$run/aside; }
unmark() { rm -f $run/aside; }
delete_output() { rm -rf "$1"; }

command_run() { # $1 seconds, $2 maximum bytes of output, in folder $3, output in $4, $5 bytes in a reply, then the command
  seconds=$1 limit=$2 where=$3 output=$4 short=$5
  shift 5
  (umask 077 && mkdir "$output") && cd "$where" || exit 6
  {
    {
      setsid timeout -k 1 "$seconds" env -i "PATH=$PATH" HOME=$root/home LANG=C.UTF-8 "$@" </dev/null 2>&3 3>&-
      echo $? >"$output/code"
    } | {
      head -c "$limit" >"$output/out"
      cat >/dev/null
    }
  } 3>&1 >/dev/null | {
    head -c "$limit" >"$output/err"
    cat >/dev/null
  }
  result "$output" "$short"
}

result() { # print how a command ended, and its output if it is short; longer output is downloaded later
  size=$(($(wc -c <"$1/out") + $(wc -c <"$1/err")))
  echo "$(cat "$1/code" 2>/dev/null || echo none) $size"
  [ $size -le "$2" ] || return 0
  base64 <"$1/out" | tr -d '\n'
  echo
  base64 <"$1/err" | tr -d '\n'
  echo
  rm -rf "$1"
}

verb=$1
shift
server=$(ancestors $PPID)
"$verb" "$@"
