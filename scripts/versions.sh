# What setup.sh and bench.sh install; to be sourced. Another LibTorch is tried by scripts/matrix.sh before it stands here.
TORCH_VERSION=2.15.0
# As torch's own metadata has them. libtorch_cpu.so is linked to the CUDA runtime and to CUPTI; no driver is needed.
CUDA_TOOLKIT_VERSION=13.2.2
CUDA_COMPONENT_VERSION=13.2.86 # of that toolkit: its compiler, runtime, and headers without a version of their own
CUDA_LIBRARIES="cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==$CUDA_TOOLKIT_VERSION
  nvidia-cudnn-cu13==9.26.0.51 nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.30.7 nvidia-nvshmem-cu13==3.7.2"
# Those without which Python does not import torch, even where there is no GPU.
CUDA_LIBRARIES_TO_IMPORT="cuda-toolkit[cufile]==$CUDA_TOOLKIT_VERSION nvidia-cusparselt-cu13==0.8.1 nvidia-nvshmem-cu13==3.7.2"
# What its CUDA headers include.
CUDA_HEADERS="nvidia-cublas==13.4.1.3 nvidia-cusolver==12.2.0.11 nvidia-cusparse==12.7.10.12 nvidia-nccl-cu13==2.30.7
  nvidia-nvtx==$CUDA_COMPONENT_VERSION"
PYARROW_VERSION=26.0.1
# What setup.sh installs, one by one: scripts/wheels.txt has the hash of each, and scripts/hash_wheels.py writes that file.
LIBTORCH_WHEELS="torch==$TORCH_VERSION nvidia-cuda-runtime==$CUDA_COMPONENT_VERSION nvidia-cuda-cupti==$CUDA_COMPONENT_VERSION"
PYARROW_WHEELS="pyarrow==$PYARROW_VERSION" # nothing that it needs in Python
NVCC_WHEELS="nvidia-cuda-nvcc==$CUDA_COMPONENT_VERSION nvidia-cuda-crt==$CUDA_COMPONENT_VERSION
  nvidia-nvvm==$CUDA_COMPONENT_VERSION nvidia-cuda-runtime==$CUDA_COMPONENT_VERSION nvidia-cuda-cccl==$CUDA_COMPONENT_VERSION
  $CUDA_HEADERS"
# The libraries that CUDA_LIBRARIES come to.
CUDA_LIBRARY_WHEELS="$CUDA_HEADERS nvidia-cuda-cupti==$CUDA_COMPONENT_VERSION nvidia-cuda-nvrtc==$CUDA_COMPONENT_VERSION
  nvidia-cuda-runtime==$CUDA_COMPONENT_VERSION nvidia-cudnn-cu13==9.26.0.51 nvidia-cufft==12.2.0.57 nvidia-cufile==1.17.1.22
  nvidia-curand==10.4.2.66 nvidia-cusparselt-cu13==0.8.1 nvidia-nvjitlink==13.5.37 nvidia-nvshmem-cu13==3.7.2"
TRANSFORMERS_VERSION=5.23.0 # the peer of benchmarks
