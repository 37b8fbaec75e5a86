"""What measure_kernels.py needs of PyTorch, without numbers: operations take the seconds of a law, on a clock of their own.

A test copies this file to a folder as `torch.py`. FAKE_CUDA=1: a GPU. FAKE_STOP=N: the user stops the run at the N-th product.
"""

from __future__ import annotations

import os
import sys
import types
from contextlib import contextmanager
from typing import Any

__version__ = "0.0.fake"
CUDA = os.environ.get("FAKE_CUDA") == "1"
STOP = int(os.environ.get("FAKE_STOP", "0"))
HELD = 3000  # numbers of the largest tensor: an out-of-memory above it
state = {"clock": 0.0, "products": 0}


class version:
    cuda, hip = "12.9", None


class device:
    def __init__(self, name: str, index: int | None = None) -> None:
        self.type, _, number = name.partition(":")
        self.index = int(number) if number else index
        if self.type not in ("cuda", "cpu"):
            raise RuntimeError(f"Expected one of cpu, cuda: {name}")


class OutOfMemoryError(RuntimeError):
    pass


class Tensor:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        if CUDA and shape[0] * shape[-1] > HELD and len(shape) == 2 and shape[-1] != 4096:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate")

    def t(self) -> Tensor:
        return Tensor(self.shape[::-1])

    def to(self, _: Any) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return spend(self, 4e-3)

    def requires_grad_(self, _: bool) -> Tensor:
        return self


def spend(found: Tensor, seconds: float) -> Tensor:
    state["clock"] += seconds
    return found


def randn(*shape: int, device: Any = None, dtype: Any = None) -> Tensor:
    return Tensor(shape)


def randn_like(one: Tensor) -> Tensor:
    return one


def ones(*_: Any, device: Any = None, dtype: Any = None) -> Tensor:
    return Tensor((1, 1))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """1 ms and 1 GFLOP/s."""
    state["products"] += 1
    if STOP and state["products"] > STOP:
        raise KeyboardInterrupt
    (m, k), (other, n) = a.shape, b.shape
    assert k == other, "a product of these shapes does not exist"
    return spend(Tensor((m, n)), 1e-3 + 2 * m * n * k / 1e9)


def _scaled_mm(a: Tensor, b: Tensor, scale_a: Any, scale_b: Any, out_dtype: Any) -> Tensor:
    raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0")


def add(a: Tensor, b: Tensor) -> Tensor:
    return spend(a, 6e-3)


@contextmanager
def no_grad() -> Any:
    yield


def attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    return spend(q, 2e-3 * q.shape[1])


float16, bfloat16, float32, float8_e4m3fn = "fp16", "bf16", "fp32", "fp8"
cuda = types.SimpleNamespace(
    OutOfMemoryError=OutOfMemoryError,
    is_available=lambda: CUDA,
    set_device=lambda one: None if one.index is not None else sys.exit("set_device without an index"),
    synchronize=lambda: None,
    empty_cache=lambda: None,
    get_device_name=lambda _: "NVIDIA H100 80GB HBM3",
    get_device_capability=lambda _: (9, 0),
    get_device_properties=lambda _: types.SimpleNamespace(total_memory=85_000_000_000, multi_processor_count=132),
)


class _Event:
    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = state["clock"]

    def elapsed_time(self, end: _Event) -> float:
        return (end.at - self.at) * 1e3


cuda.Event = _Event
autograd = types.SimpleNamespace(grad=lambda out, inputs, gradient, retain_graph: spend(out, 5e-3 * out.shape[1]))
nn = types.SimpleNamespace(
    functional=types.SimpleNamespace(
        scaled_dot_product_attention=attend,
        gelu=lambda x, approximate: spend(x, 4e-3),
        layer_norm=lambda x, shape: spend(x, 4e-3),
    )
)
