"""Boxes as pods of a Kubernetes cluster."""

from spawner.runtimes.kubernetes.light import prepare

prepare()
