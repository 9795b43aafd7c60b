// Functions that programs link to and that the stand-in doesn't implement: each returns cudaErrorNotSupported.
#include "runtime.hpp"

// They have names of their own here, because the headers declare them with parameters.
#define MISSING(NAME)                                    \
  EXPORT_AS(missing_##NAME)() __asm__(#NAME);            \
  cudaError_t missing_##NAME() {                         \
    return standin::cudart::note(cudaErrorNotSupported); \
  }

MISSING(cudaArrayGetInfo)
MISSING(cudaDeviceGetGraphMemAttribute)
MISSING(cudaDeviceReset)
MISSING(cudaDeviceSetGraphMemAttribute)
MISSING(cudaGraphAddNode)
MISSING(cudaGraphConditionalHandleCreate)
MISSING(cudaIpcGetEventHandle)
MISSING(cudaIpcOpenEventHandle)
MISSING(cudaKernelSetAttributeForDevice)
MISSING(cudaLibraryGetGlobal)
MISSING(cudaLibraryGetKernel)
MISSING(cudaLibraryGetKernelCount)
MISSING(cudaLibraryGetManaged)
MISSING(cudaLibraryGetUnifiedFunction)
MISSING(cudaLibraryLoadData)
MISSING(cudaLibraryLoadFromFile)
MISSING(cudaLibraryUnload)
MISSING(cudaMallocManaged)
MISSING(cudaMallocPitch)
MISSING(cudaMemAdvise)
MISSING(cudaMemPrefetchAsync)
MISSING(cudaMemset2D)
MISSING(cudaMemset2DAsync)
MISSING(cudaStreamBeginCaptureToGraph)
