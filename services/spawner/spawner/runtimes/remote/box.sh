# What is done inside a box, by way of its agent server: it can run a command and knows nothing of programs that stay.
# The first argument says what to do. Everything of ours is below $root; $run says how the program fares.
root=/sandherd
run=$root/run

fields_of() { # state ppid pgrp session ... of a process; nothing if it is gone
  line=
  read -r line <"/proc/$1/stat" || return 1
  printf '%s\n' "${line##*) }"
} 2>/dev/null

field_of() { # the field $2 of process $1
  set -- "$2" $(fields_of "$1")
  shift "$1" 2>/dev/null && printf '%s\n' "$1"
}

forebears() { # process $1 and those above it: the agent server
  pid=$1
  while [ "${pid:-0}" -gt 1 ]; do
    printf '%s ' "$pid"
    pid=$(field_of "$pid" 2)
  done
  printf '1 '
}

ours() { # every process that is neither the agent server's nor one of these scripts
  all=$(echo /proc/[0-9]*)
  apart=' '
  for found in $(grep -lsa sandherd-control /proc/[0-9]*/cmdline); do # later: what began meanwhile is in none of both
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

surely_ours() { # what the agent server has just forked is its own for a moment, before it becomes one of these scripts
  first=" $(ours)"
  for sure in $(ours); do
    case "$first" in *" $sure "*) printf '%s ' "$sure" ;; esac
  done
}

send() { # a signal to all of them, until none is left that it has not reached; $2: the states that it leads to
  tries=50
  while [ $tries -gt 0 ]; do
    left=
    for pid in $(surely_ours); do
      case "$2" in *"$(field_of "$pid" 1)"*) continue ;; esac
      left="$left $pid"
    done
    [ -n "$left" ] || return 0
    kill "-$1" $left 2>/dev/null
    tries=$((tries - 1))
    [ $tries -gt 45 ] || sleep 0.05
  done
}

write() { # $1 is a file's whole content, at once
  printf '%s\n' "$2" >"$run/$1.new" && mv "$run/$1.new" "$run/$1"
}

kept() { # whether somebody looks after the program; after a restart another process may have the number
  [ -s $run/keeper ] || return 1
  read -r pid born <$run/keeper
  case "$(field_of "$pid" 1)" in '' | Z | X) return 1 ;; esac
  [ "$(field_of "$pid" 20)" = "$born" ] && grep -qsa sandherd-control "/proc/$pid/cmdline"
}

killed_for_memory() {
  cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null | grep '^oom_kill '
}

folder() { # a folder that this user may write to, with an administrator's help if the image allows that
  mkdir -p "$1" 2>/dev/null
  [ -w "$1" ] && return 0
  sudo -n install -d -m 755 -o "$(id -u)" -g "$(id -g)" "$1" 2>/dev/null && return 0
  echo "its user can't write to $1" >&2
  exit 3
}

until_ended() { # for $1 twentieths of a second
  left=$1
  while [ ! -e $run/end ] && [ "$left" -gt 0 ]; do
    kept || return 0
    sleep 0.05
    left=$((left - 1))
  done
}

heeds() { # whether process $1 catches, blocks or ignores SIGTERM: bit 14
  while read -r name mask; do
    case "$name" in SigBlk: | SigIgn: | SigCgt:) ;; *) continue ;; esac
    mask=${mask%???}
    case "${mask#"${mask%?}"}" in [4-7c-f]) return 0 ;; esac
  done <"/proc/$1/status"
  return 1
} 2>/dev/null

until_heeding() { # a program that has just begun is given a second to be ready for its end, as a container's first is
  left=20
  while [ ! -e $run/end ] && [ $left -gt 0 ]; do
    [ -s $run/pid ] && heeds "$(cat $run/pid)" && return 0
    sleep 0.05
    left=$((left - 1))
  done
}

prepare() { # our folders; says whether the program $1 is there
  folder $root
  umask 077
  for name in state work home previous run; do mkdir -p "$root/$name"; done
  [ -e $run/made ] || write made "$(date +%s)"
  command -v "$1" >/dev/null && echo there
  true
}

unpack() { # the worker, brought as an archive $2, to where it belongs
  folder "$1"
  cd "$1" && tar -xzf "$2" && rm -f "$2"
}

place() { # what was uploaded as $1/0, $1/1 ... to the path and with the mode that follow
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

launch() { # the program, unless it was started before ($1 = first) or runs ($1 = again)
  [ -s $run/program ] || { echo 'its files are gone' >&2; exit 44; }
  exec 9>$run/lock
  flock 9
  [ "$1" = first ] && [ -e $run/runs ] && exit 0
  [ ! -e $run/end ] && kept && exit 0
  rm -f $run/end $run/frozen $run/keeper $run/pid
  write runs $(($(cat $run/runs 2>/dev/null || echo 0) + 1))
  setsid /bin/sh -c "$SANDHERD_SCRIPT" sandherd-control keep "$(forebears $PPID)" </dev/null >/dev/null 2>&1 9>&- &
  write keeper "$! $(field_of $! 20)"
}

keep() { # start the program, and write down how it ended
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

look() { # the keeper first: when it is gone, the end is written
  cd $run 2>/dev/null || exit 0
  exec 9>>lock
  flock -s 9
  kept && echo kept
  for name in made runs end; do [ -s $name ] && echo "$name $(cat $name)"; done
  [ -s labels ] && echo "labels $(head -n 1 labels)"
  for name in frozen aside; do [ -e $name ] && echo "$name"; done
  [ -s said ] && echo "said $(tail -n 1 said | head -c 500 | tr -d '\0')"
  true
}

stop() { # $1 twentieths of a second of grace
  kept || { send KILL ''; exit 0; } # an agent may have ended the keeper, and live on
  until_heeding
  kill -TERM "$(cat $run/pid)" 2>/dev/null
  until_ended "$1"
  [ -e $run/end ] || send KILL ''
  until_ended 200
  rm -f $run/aside # nobody has marked what runs, unless it did so itself
}

program_runs() {
  [ ! -e $run/end ] && kept && return 0
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
  for pid in $(ours); do
    case "$(field_of "$pid" 1)" in T) kill -CONT "$pid" ;; esac
  done
  rm -f $run/frozen
}

mark() { : >$run/aside; }
unmark() { rm -f $run/aside; }
forget() { rm -rf "$1"; }

command_run() { # $1 seconds, $2 bytes of output at the most, in folder $3, with its output in $4, the command from $5 on
  seconds=$1 most=$2 where=$3 said=$4 short=$5
  shift 5
  (umask 077 && mkdir "$said") && cd "$where" || exit 6
  {
    {
      setsid timeout -k 1 "$seconds" env -i "PATH=$PATH" HOME=$root/home LANG=C.UTF-8 "$@" </dev/null 2>&3 3>&-
      echo $? >"$said/code"
    } | {
      head -c "$most" >"$said/out"
      cat >/dev/null
    }
  } 3>&1 >/dev/null | {
    head -c "$most" >"$said/err"
    cat >/dev/null
  }
  result "$said" "$short"
}

result() { # how a command ended; its output as well if it is short, otherwise it waits to be fetched
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
server=$(forebears $PPID)
"$verb" "$@"
