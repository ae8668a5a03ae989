#!/bin/sh
# A very small agent: it writes a program, finds a fault in it, fixes it, and checks the result.
# It reports its steps on the file descriptor that the worker gives it; its edits are detected without that.
set -eu

# Where a language model would think.
think() { sleep 0.3; }
say() { printf '%s\n' "$1" >&"$SANDHERD_EVENTS_FD"; }

echo "task: $SANDHERD_TASK"

say '{"type":"agent.thinking","data":{"content":"A product of fractions, kept whole at every step.","thinking_type":"plan"}}'
cat > binomial.py <<'PYTHON'
"""The number of ways to choose k of n things."""


def binomial(n: int, k: int) -> int:
    result = 1
    for i in range(k):
        result = result * (n - i) / (i + 1)
    return result


print(binomial(50, 25))
PYTHON

think
say '{"type":"agent.tool_use","data":{"tool":"python3","tool_use_id":"first-run","input":{"argv":["python3","binomial.py"]}}}'
first=$(python3 binomial.py)
echo "first try: $first"
say '{"type":"agent.tool_result","data":{"tool_use_id":"first-run","result":"'"$first"'","result_full_length":'"${#first}"'}}'

think
say '{"type":"agent.message","data":{"content":"That is a float; it must divide whole numbers.","content_length":46}}'
sed -i 's| / (i + 1)| // (i + 1)|' binomial.py

think
say '{"type":"agent.tool_use","data":{"tool":"python3","tool_use_id":"second-run","input":{"argv":["python3","binomial.py"]}}}'
second=$(python3 binomial.py)
echo "second try: $second"
say '{"type":"agent.tool_result","data":{"tool_use_id":"second-run","result":"'"$second"'","result_full_length":'"${#second}"'}}'

python3 -c 'import math, sys; sys.exit(int(sys.argv[1]) != math.comb(50, 25))' "$second"
echo "C(50, 25) = $second, checked against math.comb"
