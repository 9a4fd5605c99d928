"""The foundation of all other modules."""
