"""The model that assesses soft findings: its prompt, its client, its reply, and its token limit."""
