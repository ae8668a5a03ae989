#!/bin/sh
# A very small agent: it runs the test of the repository, fixes the fault that it shows, runs the test again, commits.
# It reports its steps on the file descriptor that the worker gives it; its edits are detected without that.
set -eu

# Where a language model would think.
think() { sleep 0.3; }
report() { printf '%s\n' "$1" >&"$SANDHERD_EVENTS_FD"; }
begins() { report '{"type":"agent.tool_use","data":{"tool":"python3","tool_use_id":"'"$1"'","input":{"argv":["python3","test_binomial.py"]}}}'; }
ends() { report '{"type":"agent.tool_result","data":{"tool_use_id":"'"$1"'","result":"'"$2"'","result_full_length":'"${#2}"'}}'; }

echo "task: $SANDHERD_TASK"
begins first-run
first=$(python3 test_binomial.py 2>&1 | tail -n 1) || true
echo "first run: $first"
ends first-run "$first"

think
report '{"type":"agent.thinking","data":{"content":"The division makes floats, which lose digits.","thinking_type":"plan"}}'
sed -i 's| / (i + 1)| // (i + 1)|' binomial.py

think
begins second-run
second=$(python3 test_binomial.py)
echo "second run: $second"
ends second-run "$second"
git commit --quiet --all --message "Divide whole numbers"
report '{"type":"agent.message","data":{"content":"The test passes.","content_length":16}}'
