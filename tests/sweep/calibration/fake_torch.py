"""What measure_kernels.py needs of PyTorch, without numbers: operations take the seconds of a law, on a clock of their own.

A test copies this file to a folder as `torch.py`. FAKE_CUDA=1: a GPU. FAKE_STOP=N: the user stops the run at the N-th product.
"""

from __future__ import annotations

import math
import os
import sys
import types
from contextlib import contextmanager
from pathlib import Path
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

    def _same(self, *_: Any, **__: Any) -> Tensor:
        return Tensor(self.shape)

    __add__ = __mul__ = __truediv__ = __floordiv__ = float = index_add = _same

    @property
    def dtype(self) -> str:
        return "bf16"

    def view(self, *shape: int) -> Tensor:
        rest = math.prod(self.shape) // -math.prod(shape)
        found = tuple(rest if size < 0 else size for size in shape)
        assert math.prod(found) == math.prod(self.shape), "a view of these shapes does not exist"
        return Tensor(found)

    reshape = view

    def transpose(self, one: int, other: int) -> Tensor:
        sizes = list(self.shape)
        sizes[one], sizes[other] = sizes[other], sizes[one]
        return Tensor(tuple(sizes))

    def permute(self, *order: int) -> Tensor:
        return Tensor(tuple(self.shape[one] for one in order))

    def unbind(self, _: int) -> list[Tensor]:
        return [Tensor(self.shape[1:]) for _ in range(self.shape[0])]

    def chunk(self, parts: int, dim: int) -> list[Tensor]:
        return [Tensor((*self.shape[:-1], self.shape[-1] // parts)) for _ in range(parts)]

    def flatten(self) -> Tensor:
        return Tensor((math.prod(self.shape),))

    def index_select(self, _: int, index: Tensor) -> Tensor:
        return Tensor((index.shape[0], *self.shape[1:]))

    def unsqueeze(self, _: int) -> Tensor:
        return Tensor((*self.shape, 1))


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


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """As `matmul`, a batch of them as one."""
    (e, m, k), (same, other, n) = a.shape, b.shape
    assert (e, k) == (same, other), "a product of these shapes does not exist"
    return spend(Tensor((e, m, n)), 1e-3 + 2 * e * m * n * k / 1e9)


def _grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    raise AttributeError("no grouped products here")


def arange(start: int, stop: int, step: int, device: Any = None, dtype: Any = None) -> Tensor:
    return Tensor((len(range(start, stop, step)),))


def topk(a: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return Tensor((*a.shape[:-1], k)), Tensor((*a.shape[:-1], k))


def argsort(a: Tensor) -> Tensor:
    return a


def zeros_like(a: Tensor) -> Tensor:
    return a


def linear(x: Tensor, weight: Tensor) -> Tensor:
    (n, k), rows = weight.shape, math.prod(x.shape[:-1])
    assert x.shape[-1] == k, "a product of these shapes does not exist"
    return spend(Tensor((*x.shape[:-1], n)), 1e-3 + 2 * rows * n * k / 1e9)


class CUDAGraph:
    """Takes half of the time of what it has recorded."""

    seconds = 0.0

    def replay(self) -> None:
        state["clock"] += self.seconds / 2


class _Recording:
    def __init__(self, graph: CUDAGraph) -> None:
        self.graph = graph

    def __enter__(self) -> None:
        self.begun = state["clock"]

    def __exit__(self, *_: Any) -> None:
        self.graph.seconds = state["clock"] - self.begun
        state["clock"] = self.begun


class _Profile:
    def __enter__(self) -> _Profile:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{}", encoding="utf-8")

    def key_averages(self) -> list[Any]:
        return [types.SimpleNamespace(key="cudaLaunchKernel", count=120), types.SimpleNamespace(key="aten::mm", count=7)]


profiler = types.SimpleNamespace(ProfilerActivity=types.SimpleNamespace(CPU=0, CUDA=1), profile=lambda **_: _Profile())


@contextmanager
def _stream(_: Any) -> Any:
    yield


def add(a: Tensor, b: Tensor) -> Tensor:
    return spend(a, 6e-3)


@contextmanager
def no_grad() -> Any:
    yield


def attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    return spend(q, 2e-3 * q.shape[1])


float16, bfloat16, float32, int32, float8_e4m3fn = "fp16", "bf16", "fp32", "int32", "fp8"
cuda = types.SimpleNamespace(
    OutOfMemoryError=OutOfMemoryError,
    is_available=lambda: CUDA,
    set_device=lambda one: None if one.index is not None else sys.exit("set_device without an index"),
    synchronize=lambda: None,
    empty_cache=lambda: None,
    get_device_name=lambda _: "NVIDIA H100 80GB HBM3",
    get_device_capability=lambda _: (9, 0),
    Stream=lambda: types.SimpleNamespace(wait_stream=lambda _: None),
    current_stream=lambda: types.SimpleNamespace(wait_stream=lambda _: None),
    stream=_stream,
    CUDAGraph=CUDAGraph,
    graph=_Recording,
    reset_peak_memory_stats=lambda: None,
    max_memory_allocated=lambda: 1_000,
    max_memory_reserved=lambda: 2_000,
    mem_get_info=lambda: (84_999_997_000, 85_000_000_000),
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
autograd = types.SimpleNamespace(grad=lambda out, inputs, gradient, retain_graph=False: spend(out, 5e-3 * out.shape[1]))
nn = types.SimpleNamespace(
    functional=types.SimpleNamespace(
        scaled_dot_product_attention=attend,
        linear=linear,
        silu=lambda x: x,
        softmax=lambda x, dim: x,
        gelu=lambda x, approximate: spend(x, 4e-3),
        layer_norm=lambda x, shape: spend(x, 4e-3),
    )
)
