"""Side-by-side comparisons. Run one as ``python -m benchmarks.cpu`` from the repository's root; results are kept."""
