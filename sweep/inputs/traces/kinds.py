"""What a GPU event is by its name and the operator it belongs to: compute, communication, memory, or nobody knows."""

import re
from enum import IntEnum


class Kind(IntEnum):
    """What a GPU does during an event."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    UNCLASSIFIED = 3


_MEMORY = re.compile(r"^(Memcpy|Memset)\b|^Memory(Copy|Set)", re.IGNORECASE)

COLLECTIVES = re.compile(
    r"nccl|"  # NCCL and RCCL: ncclKernel_AllReduce_RING_LL_Sum_float, ncclDevKernel_Generic, rcclGenericKernel
    r"cross_device_reduce|"  # vLLM, SGLang: custom all-reduce
    r"deep_ep::|nvshmem|rocshmem|"  # DeepEP, NVSHMEM
    r"userbuffers|"  # Transformer Engine
    r"mscclpp?|oneccl|hccl|"
    r"(one|two)_shot_all_?reduce|multimem_all|symm_mem|"  # torch symmetric memory
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
"""Names of kernels that communicate; searched for before those that compute."""

_COMPUTE = re.compile(
    r"\bat::|at_cuda_detail|c10::|caffe2|torch|aten|\bthrust::|\bcub::|hipcub|rocprim|"  # PyTorch and what it is built on
    r"cutlass|cublas|cudnn|cask|xmma|cute::|rocblas|hipblas|Cijk_|miopen|\bck::|_ZN2ck|tensile|aiter|"  # libraries
    r"triton_|inductor|fbgemm|apex|transformer_engine|flash|fmha|mha_|xformers|vllm|"
    # words of the numerics that a kernel does
    r"gemm|gemv|gemk|matmul|(^|_|\b)mm_|conv(\b|_|\d|olve|ert|ol)|wgrad|dgrad|fprop|winograd|im2col|col2im|fft|"
    r"elementwise|element_wise|reduce_kernel|reduce_1block|splitk|dot_kernel|scal_kernel|axpy|nrm2|asum|"
    r"softmax|logsumexp|cross_?entropy|nll_loss|layer_?norm|rms_?norm|batch_?norm|group_?norm|\bbn_|norm_kernel|"
    r"attention|attn|rope|rotary|embedding|codegen|permute|transpose|nchw|nhwc|SubTensor|OpTensor|"
    r"dropout|gelu|silu|swiglu|relu|sigmoid|tanh|activation|pool|upsample|interpolat|"
    r"adam|adagrad|sgd|lamb|optimizer|multi_tensor|foreach|"
    r"sort|scan|unique|topk|argmax|cumsum|histogram|index|bucketize|jagged|lengths|"
    r"fill|copy|cast|quantiz|scale_kernel|distribution|random|philox|curand|rocrand|"
    r"lstm|gru_|rnn|elemwise|pointwise|vectorized|unrolled|computeOffsets|globalKernel|bounds_check|"
    r"tensor_kernel|compute_cuda",
    re.IGNORECASE,
)

OPERATORS = re.compile(r"^(aten|prims|quantized|fbgemm|torchvision|xformers|flash_attn\w*|_?flash_attn\w*|inductor)::")
"""Operators whose kernels compute, whatever they are called."""


def kind_of_event(name: str, memory: bool) -> Kind:
    """The kind of a GPU event by its name; `memory`: the file says that it copies or fills."""
    if memory or _MEMORY.search(name):
        return Kind.MEMORY
    if COLLECTIVES.search(name):
        return Kind.COMMUNICATION
    return Kind.COMPUTE if _COMPUTE.search(name) else Kind.UNCLASSIFIED


def computes(operator: str) -> bool:
    """Whether the kernels of an operator compute: those of PyTorch's own and of known libraries, not a user's."""
    return OPERATORS.search(operator) is not None
