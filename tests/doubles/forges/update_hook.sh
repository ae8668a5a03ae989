#!/bin/sh
# git's update hook of a forge's repository. Arguments: ref, old commit, new commit.
# `protected-refs` beside it has, in each line, a pattern of refs, a tab, and the text of the refusal.
# FORGE_WORKFLOWS is the text of the refusal of changes to workflows, and empty where they are permitted.
tab=$(printf '\t')
while IFS="$tab" read -r pattern text; do
  case "$1" in
  $pattern)
    printf '%b\n' "$text" >&2
    exit 1
    ;;
  esac
done <protected-refs

if [ -n "$FORGE_WORKFLOWS" ] && [ "$3" != 0000000000000000000000000000000000000000 ] &&
  [ -n "$(git log --format= --name-only "$3" --not --all -- .github/workflows)" ]; then
  printf '%s\n' "$FORGE_WORKFLOWS" >&2
  exit 1
fi
