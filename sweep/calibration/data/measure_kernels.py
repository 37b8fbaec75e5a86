#!/usr/bin/env python3
"""Measures one GPU under sustained load: its kernels, whole layers, and what the host needs. Needs PyTorch, nothing else.

    python measure_kernels.py                        # about five minutes; writes NAME_OF_THE_GPU.kernels.jsonl
    python measure_kernels.py --trace step.json      # also a profiler's trace of one step, with shapes and memory
    python measure_kernels.py --out mine.jsonl --seconds 120
    python measure_kernels.py --device cpu --quick   # does it run here? the times mean nothing

Then, where `sweep` is installed: `sweep calibrate kernels NAME_OF_THE_GPU.kernels.jsonl -o my_gpu.yaml`.
The GPU should be idle otherwise. Every line of the file is written as it is measured: Ctrl-C keeps what there is.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, TextIO

FORMAT = "sweep kernels 1"
NODES = (512, 2048, 8192, 16384)  # tokens
CHANNELS = (1024, 2048, 4096, 8192, 16384)
HEADS = (8, 32, 128)  # batch x heads
SEQUENCES = (1024, 4096, 16384)
HEAD_DIMS = (128, 64)
ELEMENTS = (2**25, 2**28)
EXPERTS = ((8, 4096, 14336), (64, 2048, 1408), (128, 2048, 768))  # experts, width of a token, of an expert: Mixtral to Qwen3
ROWS = (64, 512, 2048)  # tokens of an expert
LAYERS = 4
WIDTHS = ((2048, 5632, 16), (4096, 14336, 32), (8192, 28672, 64))  # of a token, of the MLP, heads: 1B, 8B, 70B
TOKENS = (16, 2048, 8192)  # of a sequence; of 16 the GPU does nothing but wait for the host
TOPK = 2
QUICK: Any = {"NODES": (16, 32), "CHANNELS": (32, 64), "HEADS": (2, 4), "SEQUENCES": (16, 32), "ELEMENTS": (2**10, 2**12)}
QUICK.update({"EXPERTS": ((4, 16, 8),), "ROWS": (8, 16), "WIDTHS": ((16, 32, 2),), "TOKENS": (16, 32)})
PHASES = ("forward", "input_gradient", "weight_gradient")
CACHE = 256 * 2**20  # bytes of inputs that are used in turn, so that no cache holds them all
MOST_COPIES = 16
SAMPLE_S = 0.004  # least seconds of a sample: many launches of a short kernel
SHAPE_S = 0.15  # seconds of a shape
HEATING_S = 0.05  # seconds of the heaviest GEMM before each shape, so that the clock is that of sustained load
LEAST, MOST = 3, 30  # samples of a shape
REPORT_S = 15.0


class Clock:
    """Seconds of a function on the device: samples of several calls, the median a call."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch, self.device = torch, device
        self.gpu = device.type == "cuda"

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.gpu:
            self.torch.cuda.synchronize()

    def sample(self, call: Callable[[int], Any], calls: int) -> tuple[float, float]:
        """Seconds of one call on the device, and those that its launch took the host."""
        if not self.gpu:
            start = time.perf_counter()
            for number in range(calls):
                call(number)
            each = (time.perf_counter() - start) / calls
            return each, each
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.wait()
        begin.record()
        start = time.perf_counter()
        for number in range(calls):
            call(number)
        host = time.perf_counter() - start
        end.record()
        self.wait()
        return begin.elapsed_time(end) / 1e3 / calls, host / calls

    def measure(self, call: Callable[[int], Any], seconds: float) -> tuple[float, float, int, bool]:
        """Median, least and number of the samples; and whether the host took as long to launch as the device to run."""
        self.sample(call, 1)
        once, _ = self.sample(call, 2)
        calls = max(1, min(1000, int(SAMPLE_S / max(once, 1e-7))))
        samples = max(LEAST, min(MOST, int(seconds / max(once * calls, 1e-7))))
        found = [self.sample(call, calls) for _ in range(samples)]
        device, host = statistics.median(pair[0] for pair in found), statistics.median(pair[1] for pair in found)
        return device, min(found)[0], samples, self.gpu and host > 0.9 * device


class Run:
    """One run: what it measures on, and the file that it writes."""

    def __init__(self, torch: Any, device: Any, file: TextIO, options: argparse.Namespace) -> None:
        self.torch, self.device, self.file, self.options = torch, device, file, options
        self.clock = Clock(torch, device)
        self.start = self.reported = time.monotonic()
        self.measured = self.skipped = 0
        self.dtype, self.name = _sixteen_bits(torch, device)
        self.heat: Any = None

    def write(self, **row: Any) -> None:
        """A line of the file."""
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    def left(self) -> float:
        """Seconds until the run should end."""
        return float(self.options.seconds - (time.monotonic() - self.start))

    def random(self, *shape: int) -> Any:
        """Random numbers: zeros take less power, so that the clock would be too high."""
        return self.torch.randn(*shape, device=self.device, dtype=self.dtype)

    def heated(self, seconds: float) -> None:
        """Run the heaviest GEMM for some seconds."""
        if self.heat is None:
            side = max(CHANNELS)
            while True:
                try:
                    self.heat = self.random(side, side), self.random(side, side)
                    break
                except RuntimeError as error:
                    if not _is_memory(self.torch, error) or side <= 16:
                        raise
                    side //= 2
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.torch.matmul(*self.heat)
            self.clock.wait()

    def shape(self, kind: str, make: Callable[[], Callable[[int], Any]], **what: Any) -> None:
        """Measure what `make` makes, unless it does not fit, is not there, or no time is left."""
        if self.left() < 0:
            self.skipped += 1
            self.write(kind="skipped", of=kind, why="no time left", **what)
            return
        call = None
        try:
            call = make()
            self.heated(0.0 if self.options.quick else HEATING_S)
            seconds, least, samples, launched = self.clock.measure(call, 0.001 if self.options.quick else SHAPE_S)
            self.write(kind=kind, us=seconds * 1e6, least_us=least * 1e6, samples=samples, launch_bound=launched, **what)
            self.measured += 1
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
            why = "out of memory" if _is_memory(self.torch, error) else " ".join(str(error).split())[:160]
            self.skipped += 1
            self.write(kind="skipped", of=kind, why=why or type(error).__name__, **what)
        finally:
            del call
            if self.device.type == "cuda":
                self.torch.cuda.empty_cache()
        if time.monotonic() - self.reported > REPORT_S:
            self.reported = time.monotonic()
            self.conditions()
            say(f"{self.measured} kernels measured, {max(self.left(), 0):.0f} s left")

    def conditions(self) -> None:
        """Clock, temperature, power."""
        self.write(kind="conditions", at_s=round(time.monotonic() - self.start, 1), **_conditions(self.torch, self.device))

    def copies(self, bytes_of_one: int) -> int:
        """How many inputs are used in turn."""
        return 1 if self.options.quick else max(1, min(MOST_COPIES, int(CACHE // max(bytes_of_one, 1)) + 1))


def gemms(run: Run, phase: str) -> None:
    """Linear layers of 16 bits: y = x w', dx = dy w, dw = dy' x, in the layouts that PyTorch runs."""
    torch = run.torch
    for n in CHANNELS:
        for k in CHANNELS:
            for m in NODES:

                def make(m: int = m, n: int = n, k: int = k) -> Callable[[int], Any]:
                    sizes = {
                        "forward": ((m, k), (n, k)),
                        "input_gradient": ((m, n), (n, k)),
                        "weight_gradient": ((m, n), (m, k)),
                    }
                    one, other = sizes[phase]
                    pairs = [(run.random(*one), run.random(*other)) for _ in range(run.copies(2 * (m * n + n * k + m * k)))]
                    if phase == "forward":
                        return lambda i: torch.matmul(pairs[i % len(pairs)][0], pairs[i % len(pairs)][1].t())
                    if phase == "input_gradient":
                        return lambda i: torch.matmul(*pairs[i % len(pairs)])
                    return lambda i: torch.matmul(pairs[i % len(pairs)][0].t(), pairs[i % len(pairs)][1])

                run.shape("gemm", make, dtype=run.name, phase=phase, m=m, n=n, k=k)


def gemms_fp8(run: Run) -> None:
    """The same in FP8, one scale a tensor; gradients run the same kernel on transposed copies, so only the forward."""
    torch = run.torch
    kind = getattr(torch, "float8_e4m3fnuz" if torch.version.hip else "float8_e4m3fn", None)
    if kind is None or not hasattr(torch, "_scaled_mm") or run.device.type != "cuda":
        run.write(kind="skipped", of="gemm", dtype="fp8", why="this PyTorch or device has no FP8")
        return
    scale = torch.ones((), device=run.device, dtype=torch.float32)
    for n in CHANNELS:
        for k in CHANNELS:
            for m in NODES:

                def make(m: int = m, n: int = n, k: int = k) -> Callable[[int], Any]:
                    count = run.copies(m * k + n * k + 2 * m * n)
                    pairs = [(run.random(m, k).to(kind), run.random(n, k).to(kind).t()) for _ in range(count)]

                    def call(i: int) -> Any:
                        a, b = pairs[i % len(pairs)]
                        return torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

                    return call

                run.shape("gemm", make, dtype="fp8", phase="forward", m=m, n=n, k=k)


def backends(torch: Any) -> dict[str, Any]:
    """The fused attention kernels of this PyTorch, by name; one without a name where there is no choice."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return {"default": None}
    names = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
    found = {name: getattr(SDPBackend, value) for name, value in names.items() if hasattr(SDPBackend, value)}
    return {name: (lambda value=value: sdpa_kernel([value])) for name, value in found.items()}


def attention(run: Run) -> None:
    """Causal attention, forward and backward, in each kernel that PyTorch has."""
    torch = run.torch
    attend = torch.nn.functional.scaled_dot_product_attention
    for backend, context in ({"default": None} if run.device.type != "cuda" else backends(torch)).items():
        for dim in HEAD_DIMS:
            for heads in HEADS:
                for s in SEQUENCES:

                    def forward(s: int = s, heads: int = heads, dim: int = dim, context: Any = context) -> Any:
                        q, k, v = (run.random(1, heads, s, dim) for _ in range(3))
                        for x in (q, k, v):
                            x.requires_grad_(True)
                        if context is None:
                            return (q, k, v), attend(q, k, v, is_causal=True)
                        with context():
                            return (q, k, v), attend(q, k, v, is_causal=True)

                    def make_forward(forward: Any = forward, context: Any = context) -> Callable[[int], Any]:
                        (q, k, v), _ = forward()

                        def call(_: int) -> Any:
                            with torch.no_grad():
                                if context is None:
                                    return attend(q, k, v, is_causal=True)
                                with context():
                                    return attend(q, k, v, is_causal=True)

                        return call

                    def make_backward(forward: Any = forward) -> Callable[[int], Any]:
                        inputs, out = forward()
                        gradient = torch.randn_like(out)
                        return lambda _: torch.autograd.grad(out, inputs, gradient, retain_graph=True)

                    what = {"dtype": run.name, "heads": heads, "sequence": s, "head_dim": dim, "backend": backend}
                    run.shape("attention", make_forward, phase="forward", **what)
                    run.shape("attention", make_backward, phase="backward", **what)


def elementwise(run: Run) -> None:
    """Memory-bound kernels and the bytes that they read and write."""
    torch, functional = run.torch, run.torch.nn.functional
    for elements in ELEMENTS:
        kinds = {
            "add": (3, lambda x: torch.add(x[0], x[1])),
            "gelu": (2, lambda x: functional.gelu(x[0], approximate="tanh")),
            "layer_norm": (2, lambda x: functional.layer_norm(x[0], x[0].shape[-1:])),
            "copy": (2, lambda x: x[0].clone()),
        }
        for name, (passes, kernel) in kinds.items():

            def make(elements: int = elements, kernel: Any = kernel) -> Callable[[int], Any]:
                x = [run.random(max(1, elements // 4096), 4096) for _ in range(2)]
                return lambda _: kernel(x)

            run.shape("memory", make, name=name, bytes=passes * 2 * max(1, elements // 4096) * 4096)


def grouped(run: Run) -> None:
    """The products of experts that take equally many tokens: a grouped GEMM where this PyTorch has one, and a batched one."""
    torch = run.torch
    for experts, n, k in ((e, *pair) for e, width, inner in EXPERTS for pair in ((2 * inner, width), (width, inner))):
        for m in ROWS:

            def make_grouped(experts: int = experts, m: int = m, n: int = n, k: int = k) -> Callable[[int], Any]:
                tokens, weights = run.random(experts * m, k), run.random(experts, n, k).transpose(1, 2)
                ends = torch.arange(m, experts * m + 1, m, device=run.device, dtype=torch.int32)
                return lambda _: torch._grouped_mm(tokens, weights, offs=ends)

            def make_batched(experts: int = experts, m: int = m, n: int = n, k: int = k) -> Callable[[int], Any]:
                tokens, weights = run.random(experts, m, k), run.random(experts, k, n)
                return lambda _: torch.bmm(tokens, weights)

            what = {"dtype": run.name, "experts": experts, "m": m, "n": n, "k": k}
            run.shape("grouped", make_grouped, how="grouped", **what)
            run.shape("grouped", make_batched, how="batched", **what)


def launches(run: Run) -> None:
    """Seconds of the host to launch a kernel that does next to nothing, and of the device to run it in a graph."""
    torch, many = run.torch, 20 if run.options.quick else 1000
    x = run.random(16, 16)
    run.clock.sample(lambda _: torch.add(x, x), 10)
    found = [run.clock.sample(lambda _: torch.add(x, x), many) for _ in range(5)]
    of_graph = None
    if run.device.type == "cuda":
        graph = recorded(run, lambda: [torch.add(x, x) for _ in range(many)])
        of_graph = run.clock.measure(lambda _: graph.replay(), SHAPE_S)[0] / many * 1e6
    run.write(kind="launch", host_us=statistics.median(host for _, host in found) * 1e6, graph_us=of_graph, launches=many)


def recorded(run: Run, work: Callable[[], Any]) -> Any:
    """A CUDA graph of some work, which runs three times before on a stream of its own, as PyTorch asks for."""
    torch = run.torch
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


class Layers:
    """Layers of a transformer with their weights: dense, or with experts that take equally many tokens (forced balance)."""

    def __init__(self, run: Run, width: int, inner: int, heads: int, experts: int) -> None:
        self.run, self.width, self.heads, self.experts = run, width, heads, experts
        shapes: Any = {"qkv": (3 * width, width), "proj": (width, width)}
        if experts:
            inner //= 4  # each is narrower than a dense MLP
            shapes.update(router=(experts, width), up=(experts, width, 2 * inner), down=(experts, inner, width))
        else:
            shapes.update(up=(2 * inner, width), down=(width, inner))
        made = ({name: run.random(*shape) / width**0.5 for name, shape in shapes.items()} for _ in range(LAYERS))
        self.weights = [{name: one.requires_grad_(True) for name, one in layer.items()} for layer in made]

    def forward(self, x: Any) -> Any:
        """All layers of [1, tokens, width]."""
        functional = self.run.torch.nn.functional
        for weight in self.weights:
            y = functional.layer_norm(x, (self.width,))
            heads = (1, x.shape[1], 3, self.heads, self.width // self.heads)
            q, k, v = functional.linear(y, weight["qkv"]).view(*heads).permute(2, 0, 3, 1, 4).unbind(0)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + functional.linear(attended.transpose(1, 2).reshape(1, x.shape[1], self.width), weight["proj"])
            y = functional.layer_norm(x, (self.width,))
            x = x + (self.of_experts(y, weight) if self.experts else self.of_mlp(y, weight))
        return x

    def of_mlp(self, y: Any, weight: Any) -> Any:
        """SwiGLU."""
        functional = self.run.torch.nn.functional
        gate, up = functional.linear(y, weight["up"]).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, weight["down"])

    def of_experts(self, y: Any, weight: Any) -> Any:
        """Router, permutation, the experts' products, and back."""
        torch, functional = self.run.torch, self.run.torch.nn.functional
        flat = y.reshape(-1, self.width)
        share, chosen = torch.topk(functional.softmax(functional.linear(flat, weight["router"]).float(), dim=-1), TOPK)
        order = torch.argsort(chosen.flatten())
        token = order // TOPK
        rows = flat.index_select(0, token).view(self.experts, -1, self.width)
        gate, up = torch.bmm(rows, weight["up"]).chunk(2, dim=-1)
        out = torch.bmm(functional.silu(gate) * up, weight["down"]).view(-1, self.width)
        out = out * share.flatten().index_select(0, order).unsqueeze(1).to(out.dtype)
        return torch.zeros_like(flat).index_add(0, token, out).view(*y.shape)

    def parameters(self) -> list[Any]:
        """All weights."""
        return [one for layer in self.weights for one in layer.values()]


def layers(run: Run) -> None:
    """Layers forward and backward, launched one by one and as a CUDA graph: seconds of device and host, bytes of memory."""
    for width, inner, heads in WIDTHS:
        for experts in (0, 8):
            for tokens in TOKENS:
                what = {"experts": experts, "hidden": width, "ffn": inner, "heads": heads, "tokens": tokens, "layers": LAYERS}
                if run.left() < 0:
                    run.skipped += 1
                    run.write(kind="skipped", of="layer", why="no time left", **what)
                    continue
                run.heat = None  # the memory is that of the layers alone

                def measure(what: Any = what) -> None:
                    width, inner, heads, experts, tokens = (
                        what[key] for key in ("hidden", "ffn", "heads", "experts", "tokens")
                    )
                    row = of_layers(run, Layers(run, width, inner, heads, experts), tokens)
                    run.write(kind="layer", dtype=run.name, **what, **row)
                    run.measured += 1

                attempt(run, "layer", measure, **what)


def attempt(run: Run, kind: str, measure: Callable[[], None], **what: Any) -> None:
    """Measure, or write why that is not possible."""
    try:
        measure()
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
        why = "out of memory" if _is_memory(run.torch, error) else " ".join(str(error).split())[:160]
        run.skipped += 1
        run.write(kind="skipped", of=kind, why=why or type(error).__name__, **what)
    if run.device.type == "cuda":
        run.torch.cuda.empty_cache()


def of_layers(run: Run, stack: Layers, tokens: int) -> dict[str, Any]:
    """Microseconds of one layer; of all, the bytes allocated at the most, those reserved, and those that the driver counts."""
    torch, gpu = run.torch, run.device.type == "cuda"
    x = run.random(1, tokens, stack.width).requires_grad_(True)
    weights, gradient = [x, *stack.parameters()], run.random(1, tokens, stack.width)
    row: dict[str, Any] = {}

    def backward(out: Any) -> Any:
        return torch.autograd.grad(out, weights, gradient)

    def step() -> Any:
        return backward(stack.forward(x))

    if gpu:
        torch.cuda.reset_peak_memory_stats()
    step()
    if gpu:
        free, whole = torch.cuda.mem_get_info()
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        row.update(allocated_bytes=allocated, reserved_bytes=reserved, driver_bytes=whole - free)
    found = []
    for _ in range(LEAST if run.options.quick else 10):
        run.heated(0.0 if run.options.quick else HEATING_S)
        forward_s, host_forward_s = run.clock.sample(lambda _: stack.forward(x), 1)
        out = stack.forward(x)
        backward_s, host_backward_s = run.clock.sample(lambda _, out=out: backward(out), 1)  # type: ignore[misc]
        found.append((forward_s, backward_s, host_forward_s, host_backward_s))
    names = ("forward_us", "backward_us", "host_forward_us", "host_backward_us")
    row.update({names[i]: statistics.median(sample[i] for sample in found) / LAYERS * 1e6 for i in range(len(names))})
    if gpu:
        graph = recorded(run, step)
        row["graph_us"] = run.clock.measure(lambda _: graph.replay(), SHAPE_S)[0] / LAYERS * 1e6
    return row


def trace(run: Run, path: str) -> None:
    """One step of dense layers as a profiler sees it, with shapes and memory, for chrome://tracing and ui.perfetto.dev."""
    profiler = run.torch.profiler
    width, inner, heads = WIDTHS[0]
    stack = Layers(run, width, inner, heads, 0)
    x = run.random(1, TOKENS[-1], width).requires_grad_(True)
    kinds = [profiler.ProfilerActivity.CPU] + ([profiler.ProfilerActivity.CUDA] if run.device.type == "cuda" else [])
    run.torch.autograd.grad(stack.forward(x), stack.parameters(), run.random(1, TOKENS[-1], width))
    with profiler.profile(activities=kinds, record_shapes=True, profile_memory=True, with_stack=False) as seen:
        run.torch.autograd.grad(stack.forward(x), stack.parameters(), run.random(1, TOKENS[-1], width))
        run.clock.wait()
    seen.export_chrome_trace(path)
    launched = sum(each.count for each in seen.key_averages() if "LaunchKernel" in each.key)
    what = {"hidden": width, "ffn": inner, "heads": heads, "tokens": TOKENS[-1], "layers": LAYERS}
    run.write(kind="trace", path=path, launches=launched, **what)


def reference(run: Run) -> None:
    """One large GEMM, at the start and at the end: has the clock changed?"""
    if run.heat is None:
        run.heated(0.0)
    seconds, least, samples, _ = run.clock.measure(lambda _: run.torch.matmul(*run.heat), 0.001 if run.options.quick else 1.0)
    side = run.heat[0].shape[0]
    run.write(kind="reference", m=side, n=side, k=side, us=seconds * 1e6, least_us=least * 1e6, samples=samples)


def _sixteen_bits(torch: Any, device: Any) -> tuple[Any, str]:
    """bf16, or fp16 on a GPU before Ampere, which only emulates bf16."""
    old = device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device)[0] < 8
    return (torch.float16, "fp16") if old else (torch.bfloat16, "bf16")


def _is_memory(torch: Any, error: Exception) -> bool:
    kind = getattr(torch.cuda, "OutOfMemoryError", None)
    return (kind is not None and isinstance(error, kind)) or "out of memory" in str(error).lower()


def _smi(torch: Any, device: Any, fields: tuple[str, ...]) -> dict[str, str]:
    """What nvidia-smi says of this GPU; nothing where it is not there."""
    if device.type != "cuda" or torch.version.hip:
        return {}
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None and os.environ.get("CUDA_VISIBLE_DEVICES"):
        return {}  # which of the node's GPUs it is, this PyTorch does not say
    chosen = str(device.index or 0) if uuid is None else "GPU-" + str(uuid).replace("GPU-", "")
    command = ["nvidia-smi", f"--id={chosen}", "--format=csv,noheader,nounits", "--query-gpu=" + ",".join(fields)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    cells = [cell.strip() for cell in done.stdout.strip().split(",")]
    return dict(zip(fields, cells)) if len(cells) == len(fields) else {}  # noqa: B905 (Python 3.8 has no strict)


def _conditions(torch: Any, device: Any) -> dict[str, str | None]:
    fields = ("clocks.sm", "temperature.gpu", "power.draw", "clocks_throttle_reasons.active")
    names = ("clock_mhz", "temperature_c", "power_w", "throttled")
    found = _smi(torch, device, fields)
    return {names[i]: found.get(fields[i]) for i in range(len(names))}


def _header(torch: Any, device: Any, options: argparse.Namespace) -> dict[str, Any]:
    found = _smi(torch, device, ("driver_version", "power.limit", "clocks.max.sm"))
    gpu = device.type == "cuda"
    about = torch.cuda.get_device_properties(device) if gpu else None
    return {
        "kind": "header",
        "format": FORMAT,
        "device": torch.cuda.get_device_name(device) if gpu else platform.processor() or platform.machine() or "CPU",
        "type": device.type,
        "memory_bytes": about.total_memory if about else 0,
        "multiprocessors": about.multi_processor_count if about else 0,
        "driver": found.get("driver_version"),
        "power_limit_w": found.get("power.limit"),
        "clock_max_mhz": found.get("clocks.max.sm"),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "torch": str(torch.__version__),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "warm_up_s": options.warm_up,
        "quick": options.quick,
    }


def say(text: str) -> None:
    """To the terminal."""
    sys.stderr.write(text + "\n")


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file to write; default: the name of the GPU, .kernels.jsonl")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu; default: cuda (ROCm is called cuda, too)")
    parser.add_argument("--trace", metavar="FILE", help="also write a profiler's trace of one step, with shapes and memory")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds at full load first; default: 30")
    parser.add_argument("--seconds", type=float, default=330.0, help="at most so many in all; default: 330")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and no warm-up: tries the script, measures nothing")
    return parser.parse_args()


def main() -> int:
    """Measure, and return the exit code."""
    options = arguments()
    if options.quick:
        globals().update(QUICK)
        options.warm_up = 0.0
    if not (0 <= options.warm_up < 3600 and 0 < options.seconds < 36000):
        say("error: --warm-up, --seconds: expected numbers of seconds")
        return 1
    try:
        import torch
    except ImportError:
        say("error: no PyTorch in this Python: run the script where you train")
        return 1
    try:
        device = torch.device(options.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            say("error: --device cuda: PyTorch sees no GPU (--device cpu --quick tries the script)")
            return 1
        if device.type not in ("cuda", "cpu"):
            say(f"error: --device {options.device}: expected cuda, cuda:NUMBER or cpu")
            return 1
        if device.type == "cuda":
            device = torch.device("cuda", device.index or 0)
            torch.cuda.set_device(device)
        header = _header(torch, device, options)
    except (RuntimeError, AssertionError) as error:
        say(f"error: --device {options.device}: {' '.join(str(error).split())[:200]}")
        return 1
    out = options.out or re.sub(r"[^A-Za-z0-9]+", "-", header["device"]).strip("-") + ".kernels.jsonl"
    try:
        file = os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8")
    except FileExistsError:
        say(f"error: {out}: there already; move it away or say --out")
        return 1
    except OSError as error:
        say(f"error: {out}: {error.strerror}")
        return 1
    warnings.filterwarnings("ignore")  # of attention kernels that are not there: the file says so
    try:
        with file:
            run = Run(torch, device, file, options)
            run.write(**header)
            code = measure_all(run)
    except OSError as error:
        say(f"error: {out}: {error.strerror}")
        return 1
    say(f"{out}: {run.measured} kernels measured, {run.skipped} skipped")
    say(f"next: sweep calibrate kernels {out} -o my_gpu.yaml")
    return code


def measure_all(run: Run) -> int:
    """Everything, the most important first; 130 if the user stopped it."""
    try:
        say(f"{run.options.warm_up:.0f} s of warm-up, then up to {run.options.seconds - run.options.warm_up:.0f} s of kernels")
        run.conditions()
        run.heated(run.options.warm_up)
        run.conditions()
        reference(run)
        launches(run)
        layers(run)
        if run.options.trace:
            attempt(run, "trace", lambda: trace(run, run.options.trace))
        gemms(run, "forward")
        attention(run)
        elementwise(run)
        grouped(run)
        for phase in PHASES[1:]:
            gemms(run, phase)
        gemms_fp8(run)
        reference(run)
        run.conditions()
    except KeyboardInterrupt:
        run.write(kind="end", seconds=round(time.monotonic() - run.start, 1), complete=False)
        say("stopped: what was measured is kept")
        return 130
    run.write(kind="end", seconds=round(time.monotonic() - run.start, 1), complete=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
