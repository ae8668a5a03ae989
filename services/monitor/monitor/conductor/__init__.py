"""The Conductor: finds live sandboxes of a project that hinder each other. It reads summaries, not agents' events."""
