"""Runs the rules over stored events: `simulation` decides, `session_labels` measures, `report` puts it together."""
