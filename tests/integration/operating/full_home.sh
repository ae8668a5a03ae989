#!/bin/bash
# A whole herd on a file system that is full, and then has room again. Run in a mount namespace of its own:
#   unshare --mount full_home.sh SANDHERD FOLDER MOUNT-OPTIONS bytes|inodes PART
# PART is the folder below the home that lies on the small file system, or `.` for all of it. What is found is printed.
set -eu
sandherd=$1 folder=$2 options=$3 kind=$4 part=$5
export SANDHERD_HOME=$folder/home
small=$SANDHERD_HOME/$part
if [ "$part" = sandboxes-disks ]; then export SANDHERD_SANDBOX_DISK_MB=1024; fi
mkdir -p "$small"
mount -t tmpfs -o "$options" tmpfs "$small"
trap '"$sandherd" down >/dev/null 2>&1 || true' EXIT
"$sandherd" up >/dev/null
"$sandherd" run before -- true >/dev/null 2>&1
junk=$small/junk
if [ "$kind" = bytes ]; then
  head -c 2000000000 /dev/zero 2>/dev/null >"$junk" || true
else
  mkdir "$junk"
  (cd "$junk" && seq 100000 | xargs touch 2>/dev/null) || true
fi
"$sandherd" run --help >/dev/null
timeout 60 "$sandherd" run while-full -- sh -c 'seq 20000' >/dev/null 2>&1 &
sleep 15
echo "=== status"; timeout 60 "$sandherd" status -o json 2>/dev/null || true
echo "=== doctor"; timeout 60 "$sandherd" doctor -o json 2>/dev/null || true
rm -rf "$junk"
begun=$(date +%s)
until timeout 30 "$sandherd" status >/dev/null 2>&1; do sleep 0.5; done
echo "=== resumed"; echo $(($(date +%s) - begun))
wait || true
"$sandherd" run after -- true >/dev/null 2>&1
sleep 3
echo "=== tasks"; "$sandherd" tasks list -o json
echo "=== audit"; "$sandherd" audit -o json || true
echo "=== end"
