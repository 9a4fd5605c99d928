"""Host functions of PyTorch extension files as Python: translated from C++, and run on rawkern's kernels."""
