"""Launches: their configuration, the native function that makes one, and the careful way beside it."""
