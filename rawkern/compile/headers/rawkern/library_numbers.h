// The numbers that cuBLAS, cuSOLVER, cuSPARSE and cuFFT bring: their headers are for the host
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
