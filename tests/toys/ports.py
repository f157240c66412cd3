"""Ports of 127.0.0.1 that a test may name before its server listens."""

from services.process.addresses import held_port

__all__ = ["held_port"]
