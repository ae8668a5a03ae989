"""The Conductor: sees which live sandboxes of a project hinder each other. It reads summaries, not agents' events."""
