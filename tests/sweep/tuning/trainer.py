"""A stand-in for a trainer: writes the log that Megatron-LM would, runs out of memory or dies as the table says.

    python trainer.py TABLE FLAGS...

TABLE: lines `tp pp micro_batch sharded outcome`, where an outcome is milliseconds of a step, `oom` or `dies`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ITERATIONS = 12
WORLD = 16


def main(table: str, *flags: str) -> int:
    """Write the log of the plan that the flags name."""

    def value(name: str) -> int:
        return int(flags[flags.index(name) + 1])

    tp, pp = value("--tensor-model-parallel-size"), value("--pipeline-model-parallel-size")
    micro_batch, sharded = value("--micro-batch-size"), int("--use-distributed-optimizer" in flags)
    own = [str(tp), str(pp), str(micro_batch), str(sharded)]
    outcomes = {tuple(words[:4]): words[4] for words in map(str.split, Path(table).read_text(encoding="utf-8").splitlines())}
    outcome = outcomes[own[0], own[1], own[2], own[3]]
    print("------------------------ arguments ------------------------")
    print(f"  data_parallel_size .............................. {WORLD // (tp * pp)}")
    print(f"  global_batch_size ............................... {value('--global-batch-size')}")
    print(f"  micro_batch_size ................................ {micro_batch}")
    print(f"  pipeline_model_parallel_size .................... {pp}")
    print(f"  tensor_model_parallel_size ...................... {tp}")
    print(f"  world_size ...................................... {WORLD}")
    print("-------------------- end of arguments ---------------------")
    if outcome == "oom":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB")
        return 1
    if outcome == "dies":
        print("srun: error: node07: task 3: Killed")
        return 137
    for iteration in range(1, ITERATIONS + 1):
        ms = 9 * float(outcome) if iteration == 1 else float(outcome)  # the first step compiles
        print(
            f" [2026-01-01 00:00:{iteration:02d}] iteration {iteration:8d}/{ITERATIONS:8d} | "
            f"consumed samples: {64 * iteration:12d} | elapsed time per iteration (ms): {ms:.1f} | "
            "learning rate: 3.000000E-05 | global batch size:    64 | lm loss: 1.04E+01 | loss scale: 1.0 | "
            "grad norm: 1.000 | number of skipped iterations:   0 |"
        )
        if iteration == 2:
            print("[Rank 0] (after 2 iterations) memory (MB) | allocated: 9000.0 | max allocated: 20480.0 | reserved: 21000.0")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
