"""Sandbox images: adds the worker to an image, and a Python for it if the image has none."""
