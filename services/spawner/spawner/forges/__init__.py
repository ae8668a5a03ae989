"""Forges (GitHub, GitLab, Gitea and Forgejo): their pull requests, by one interface.

`factory.Forges` is the entrance; it imports a forge's client when one is used first.
"""
