"""Stores files of the archive and of artifacts in a directory or a bucket of S3, each as a whole or not at all."""
