"""A task's repository: its branch is checked out before the agent starts, and saved as a bundle when it ends."""
