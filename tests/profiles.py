"""Profiler traces made up by hand in PyTorch's form: every step the same, so that each total can be added up on paper.

A step, in microseconds from its first kernel: a GEMM of 100 with a memset of 5 before it, an all-reduce from 50 to 150 beside
it, a copy of 10 at 160, and a kernel that nobody knows of 40 at 200. So a step covers 245, of which 205 are busy, 100
compute, 100 communicate, 50 exposed, 15 copy or fill, and 40 are unclassified.
"""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

Event = dict[str, Any]
STEP_US = 1000
BEHIND_US = 1500
"""The GPU runs so far behind the host that a step's kernels run after the host has left the step."""
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
UNKNOWN = "swizzle_experts_v2"
PRIVATE = ("jane-doe", "secret-host-17", "/home/jane-doe/secret_job", "llm_secret_run")
GROUPS = (
    ("0", "default_pg", [0, 1, 2, 3]),
    ("1", "TENSOR_MODEL_PARALLEL_GROUP", [0, 1]),
    ("2", "DATA_PARALLEL_GROUP", [0, 2]),
)


def group_of(rank: int, role: int) -> list[int]:
    """Ranks of a group of GROUPS that a rank is in."""
    return [list(range(4)), [rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]][role]


def profile(rank: int = 0, steps: int = 3, *, origin: float = 0.0) -> dict[str, Any]:
    """The trace of one rank."""
    events = [_annotation("secret annotation of jane-doe", origin, 10)]
    for step in range(1, steps + 1):
        events += _step(step, origin)
    events.append(_gpu("kernel", "void at::native::vectorized_elementwise_kernel<4>()", origin + 500, 30, 7, 999_999))
    config = [
        {"pg_name": name, "pg_desc": desc, "backend_config": "cuda:nccl", "pg_size": len(group_of(rank, role)),
         "ranks": group_of(rank, role)}
        for role, (name, desc, _) in enumerate(GROUPS)
    ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "host_name": PRIVATE[1],
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4, "pg_count": 3, "pg_config": config},
        "record_shapes": 1,
        "traceName": f"{PRIVATE[2]}/{PRIVATE[3]}.json",
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }


def _step(step: int, origin: float) -> list[Event]:
    host, gpu, first = origin + step * STEP_US, origin + step * STEP_US + BEHIND_US, step * 100
    collective = {
        "Collective name": "allreduce", "In msg nelems": 2**20, "Out msg nelems": 2**20, "Group size": 2, "dtype": "BFloat16",
        "Process Group Name": "1", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    return [
        _annotation(f"ProfilerStep#{step}", host, 900),
        _op("aten::mm", host + 5, 40, first + 1),
        _launch("cudaMemsetAsync", host + 8, first + 2),
        _launch("cudaLaunchKernelExC", host + 15, first + 3),
        _gpu("gpu_memset", "Memset (Device)", gpu - 5, 5, 7, first + 2, first + 1),
        _gpu("kernel", GEMM, gpu, 100, 7, first + 3, first + 1),
        _op("record_param_comms", host + 60, 20, first + 4, collective),
        _launch("cuLaunchKernelEx", host + 65, first + 5, cat="cuda_driver"),
        _gpu("kernel", NCCL, gpu + 50, 100, 20, first + 5, first + 4, collective),
        _op("aten::copy_", host + 100, 20, first + 6),
        _launch("cudaMemcpyAsync", host + 105, first + 7),
        _gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", gpu + 160, 10, 7, first + 7, first + 6),
        _op("company::swizzle", host + 130, 20, first + 8),
        _launch("cudaLaunchKernel", host + 135, first + 9),
        _gpu("kernel", UNKNOWN, gpu + 200, 40, 29, first + 9, first + 8),
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": host, "s": "t",
         "args": {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Total Allocated": 2**30 + step, "Total Reserved": 2**31}},
    ]  # fmt: skip


def _event(cat: str, name: str, ts: float, dur: float, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def _annotation(name: str, ts: float, dur: float) -> Event:
    return _event("user_annotation", name, ts, dur, 1, 1, {})


def _op(name: str, ts: float, dur: float, external: int, args: Event | None = None) -> Event:
    return _event("cpu_op", name, ts, dur, 1, 1, {"External id": external, "Call stack": PRIVATE[2], **(args or {})})


def _launch(name: str, ts: float, correlation: int, cat: str = "cuda_runtime") -> Event:
    return _event(cat, name, ts, 4, 1, 1, {"cbid": 211, "correlation": correlation})


def _gpu(
    cat: str, name: str, ts: float, dur: float, stream: int, correlation: int, external: int = -1, more: Event | None = None
) -> Event:
    args = {"device": 0, "stream": stream, "correlation": correlation, **(more or {})}
    return _event(cat, name, ts, dur, 0, stream, args | ({"External id": external} if external >= 0 else {}))


def written(path: Path, trace: object, *, packed: bool = False) -> Path:
    """A trace as a file, gzip if `packed`, whatever its name says."""
    data = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def archive(path: Path, traces: list[dict[str, Any]]) -> Path:
    """A .tar.gz of the ranks of a job, with private names inside."""
    with tarfile.open(path, "w:gz") as tar:
        for rank, trace in enumerate(traces):
            data = json.dumps(trace).encode()
            member = tarfile.TarInfo(f"{PRIVATE[3]}/worker{rank}_{PRIVATE[1]}.pt.trace.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path
