"""Files in a directory or in a bucket of S3, written whole or not at all: of the archive, and of artifacts."""
