"""An agent that says so many numbered things, a few at a time, and reads nothing.

Usage: python3 talker.py COUNT PAUSE, where PAUSE is in seconds after every twenty.
"""

import json
import os
import sys
import time

count, pause = int(sys.argv[1]), float(sys.argv[2])
channel = int(os.environ["SANDHERD_EVENTS_FD"])
for number in range(1, count + 1):
    line = {"type": "agent.message", "data": {"content": str(number), "content_length": len(str(number))}}
    os.write(channel, json.dumps(line).encode() + b"\n")
    if number % 20 == 0:
        time.sleep(pause)  # noqa: TID251  # spreads what it says over the time in which things are killed
print(f"said {count} things")
