// Functions that programs bind to and that the stand-in doesn't have: each answers cudaErrorNotSupported.
#include "runtime.hpp"

// Under a name of their own here: the headers declare them with parameters that don't matter.
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
