"""Sandbox images: adds the worker to any image that has, or gets, a Python for it."""
