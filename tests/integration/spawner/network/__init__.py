"""Tests of the process runtime's network, on a host and an internet that each test creates in namespaces."""
