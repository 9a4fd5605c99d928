"""Launches: their configuration, the native function that makes one, and the slow path."""
