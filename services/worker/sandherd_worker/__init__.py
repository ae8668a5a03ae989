"""The program in a sandbox: it runs one agent and says what the agent does."""
