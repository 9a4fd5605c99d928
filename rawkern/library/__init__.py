"""Built-in operators, forward and backward in CUDA C (`cuda_src/`), one family per file.

Nothing is imported here: `rawkern` takes each name from its family at its first use.
"""
