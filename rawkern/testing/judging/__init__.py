"""Untrusted kernels: each tried in a process of its own, which a worker forks; what it gives is compared here."""
