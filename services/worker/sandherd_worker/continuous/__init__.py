"""An agent that goes round until its work is done: one harness around the runs of another."""
