"""Boxes as pods of a Kubernetes cluster."""

from spawner.runtimes.kubernetes.lazy_client import prepare

prepare()
