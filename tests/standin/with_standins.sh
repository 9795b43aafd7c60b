#!/usr/bin/env bash
# Runs a command with an unmodified NCCL on the stand-ins for CUDA, on a machine without a GPU.
#   with_standins.sh BUILD NCCL_DIR COMMAND...
# BUILD     a build folder, whose standin/ holds the stand-ins
# NCCL_DIR  the folder of the libnccl.so.2 to use, as tests/real_nccl/fetch_wheels.py makes it (VERSION-cu12, VERSION-cu13);
#           "-" for a program that brings its own NCCL
# Variables that are set already are kept. STANDIN_SYMMETRIC=1 makes NCCL choose symmetric kernels for registered buffers.
set -euo pipefail

if (($# < 3)) || [[ ! -e $1/standin/libcudartaudit.so ]]; then
  echo "with_standins.sh: usage: with_standins.sh BUILD NCCL_DIR COMMAND... (BUILD/standin must be built)" >&2
  exit 2
fi
standins=$(cd "$1/standin" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
nccl_path=
release=13
if [[ $2 != - ]]; then
  if [[ ! -e $2/libnccl.so.2 ]]; then
    echo "with_standins.sh: $2 holds no libnccl.so.2" >&2
    exit 2
  fi
  nccl_path=$(cd "$2" && pwd):
  if [[ $nccl_path == *-cu12: ]]; then release=12; fi
fi
shift 2

# default NAME VALUE: exports a variable unless it is set.
default() { export "$1=${!1-$2}"; }

# The wheels carry PTX for compute capability 12.0, old ones for 9.0.
if [[ $nccl_path == */2.2[0-6].*-cu12: ]]; then
  default STANDIN_CUDA_CC 90
  default STANDIN_CUDA_DRIVER_VERSION 12060
fi
if ((release == 12)); then default STANDIN_CUDA_DRIVER_VERSION 12080; fi
default STANDIN_CUDA_CC 120
default NCCL_CUMEM_HOST_ENABLE 0
default NCCL_NVLS_ENABLE 0
default NCCL_IB_DISABLE 1
default NCCL_SOCKET_IFNAME lo
default NCCL_NET Socket
if [[ ${STANDIN_SYMMETRIC:-0} == 1 ]]; then
  default STANDIN_CUDA_VMM 1
  default NCCL_TOPO_FILE "$here/nvlink-topology.xml"
  default NCCL_CUMEM_ENABLE 1
  default NCCL_P2P_DISABLE 0
fi
default NCCL_CUMEM_ENABLE 0
default NCCL_P2P_DISABLE 1

export LD_LIBRARY_PATH=$nccl_path$standins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_AUDIT=$standins/libcudartaudit.so${LD_AUDIT:+:$LD_AUDIT}
export LD_PRELOAD=$standins/libcudart.so.$release${LD_PRELOAD:+:$LD_PRELOAD}
exec "$@"
