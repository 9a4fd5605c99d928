// <cuComplex.h> with the types and operators of complex<T>
#include <cupy/complex.cuh>
#include <cupy/cuComplex_bridge.h>
