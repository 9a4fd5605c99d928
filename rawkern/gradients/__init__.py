"""The backward of a CUDA C kernel, derived from its source: docs/gradients.md has the rules and why they are right."""
