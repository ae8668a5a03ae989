"""An agent that works in iterations until its work is done: one harness around the runs of another."""
