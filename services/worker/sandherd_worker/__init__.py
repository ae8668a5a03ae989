"""The program that runs in a sandbox: runs one agent and publishes its events."""
