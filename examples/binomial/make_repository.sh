#!/bin/sh
# Makes a small git repository with a failing test in a new folder, which is the argument.
set -eu
test ! -e "$1" || { echo "$1 exists: name another folder" >&2; exit 1; }
mkdir -p "$(dirname "$1")"
cp -r "$(dirname "$0")/repository" "$1"
cd "$1"
git init --quiet --initial-branch main
git add .
git -c user.name="Ada" -c user.email="ada@example.com" commit --quiet --message "A program with a failing test"
