"""Git repositories of this machine: what a task begins with, and the branches that are fetched into them."""
