"""Tests of untrusted kernels: each runs in its own process, forked by a worker; its results are compared here."""
