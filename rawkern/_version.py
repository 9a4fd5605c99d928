"""The release of rawkern."""

__version__ = "0.1.0"
