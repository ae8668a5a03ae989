#!/bin/sh
# Makes a small git repository with a failing test in the folder given as argument.
set -eu
cp -r "$(dirname "$0")/repository" "$1"
cd "$1"
git init --quiet --initial-branch main
git add .
git -c user.name="Ada" -c user.email="ada@example.com" commit --quiet --message "A program with a failing test"
