"""The model that assesses soft findings: `case` asks, `model` connects, `answer` checks, `allowance` limits."""
