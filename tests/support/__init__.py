"""Shared helpers of the tests: servers, an engine for containers."""
