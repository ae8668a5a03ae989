#!/bin/bash
# A home on a small file system. Run in a mount namespace of its own:
#   unshare --mount small_home.sh SANDHERD FOLDER TOO-SMALL-MIB SMALLEST-MIB LEFT-MIB
# `up` on one that is too small, on the smallest that suffices, with none free, and with LEFT-MIB free. Prints each.
set -u
sandherd=$1 folder=$2
export SANDHERD_HOME=$folder/home
mount -t tmpfs -o "size=$3m,mode=0755" tmpfs "$folder"
trap '"$sandherd" down >/dev/null 2>&1' EXIT
tried() {
  "$sandherd" up >/dev/null 2>"$folder.err"
  echo "=== $1 $?"
  cat "$folder.err"
}
tried too-small
echo "=== created"; ls -A "$folder"
mount -o remount,"size=$4m" "$folder"
tried smallest
"$sandherd" run one -- true >/dev/null 2>&1
echo "=== ran $?"
"$sandherd" down >/dev/null 2>&1
used=$(df --output=used -B1M "$folder" | tail -1)
mount -o remount,"size=$((used + $5))m" "$folder"
head -c 2000000000 /dev/zero 2>/dev/null >"$folder/filler"
tried full
rm "$folder/filler"
tried freed
"$sandherd" tasks list -o json >"$folder.json"
echo "=== tasks $?"; cat "$folder.json"
