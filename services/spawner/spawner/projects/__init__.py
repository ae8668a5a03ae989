"""Projects: limits and defaults of tasks that an operator has set for each, in place of the herd's settings."""
