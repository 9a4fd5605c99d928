"""Random CUDA C programs: a generator, a reference that g++ compiles, a comparison with the engine, and a reducer."""
