"""Forges (GitHub, GitLab, Gitea and Forgejo): their pull requests, by one interface.

Use `factory.Forges` to get the client of a repository's forge. It imports a client when it is used first.
"""
