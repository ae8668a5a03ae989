"""The monitor: finds sandboxes that are dead, idle or too old, and agents that go round in circles."""
