"""Choosing a kernel's configuration by timing: `rawkern.autotune`."""
