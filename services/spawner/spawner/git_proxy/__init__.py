"""A git remote for sandboxes. It serves one repository to each, and adds the forge's credential outside the sandbox."""
