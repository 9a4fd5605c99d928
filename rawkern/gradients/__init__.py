"""The backward of a CUDA C kernel, derived from its text: docs/gradients.md has the rules and why they are right."""
