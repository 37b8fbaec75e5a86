"""Doubtful records of a SimAI text: known artefacts of its generator AICB, each with the evidence that it is one.

Sources: aliyun/aicb (`AIOB_simAI_workload_generator.py`, `utils/utils.py`, `AiobMegatron.py`, `MockedMegatron.py`) for what
the generator writes; Megatron-LM (`distributed/finalize_model_grads.py`, `optimizer/distrib_optimizer.py`) for a step.
"""

from collections.abc import Iterator
from dataclasses import replace

from sim_core.units import NS, short
from sim_core.workloads.check import Check
from sim_core.workloads.simai.file import EMBEDDING, File, Runs
from sim_core.workloads.simai.records import FINAL, KEEP, PLACEHOLDER_NS, flat
from sim_core.workloads.workload import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

Doubts = Iterator[Check]

MEMORY_BANDWIDTH = 1.555e12
"""Bytes/s, for the time that memory traffic takes: A100-40GB (NVIDIA A100 data sheet); newer devices are faster."""
NVLINK_BANDWIDTH = 300e9
"""Bytes/s and direction, for the time of an all-reduce on TP: A100 (the same data sheet)."""
LOOKUP_PASSES = 5
"""Activations that an embedding moves: reads words and positions, writes the sum, transposes it (a read and a write)."""
KERNEL_S = 5e-6
"""What the shortest kernel takes with its launch."""
ADAM_BYTES = 30
"""Bytes that Adam moves per parameter: fp32 gradient in; fp32 weight and two moments in and out; bf16 weight out."""
FAR_ABOVE = 10


def checks_of(file: File) -> tuple[Check, ...]:
    """The checks that fire. Each compares the file with itself, or with a bound on the work that a record stands for."""
    kept = {name for name, value in flat(file.facts.records or {}) if value == KEEP}
    checks, step_s = [], NS * sum(sum(r.compute_ns) * n for r, n in (*file.runs, *((r, 1.0) for r in file.once)))
    for check in (doubt for look in CHECKS for doubt in look(file)):
        share = check.effect_s / step_s if check.effect_s is not None and step_s else None
        checks.append(replace(check, share=share, kept=bool({check.record, check.record.partition(".")[0]} & kept)))
    return tuple(checks)


def _mean_s(records: Runs, phase: int) -> tuple[float, float]:
    """Mean seconds of a phase over the runs, and how many these are."""
    number = sum(n for _, n in records)
    return sum(r.compute_ns[phase] * n for r, n in records) / (number or 1) * NS, number


def _time(seconds: float) -> str:
    """A time of three digits, as `workload.records` takes it."""
    return short(float(f"{seconds:.3g}"), "s")


def _timed(name: str, record: str, found: str, needs_s: float, why: str, effect_s: float) -> Check:
    """A doubt about a time, which the time that the work needs mends."""
    needed = _time(needs_s)
    return Check(name, record, f"takes {found}", f"about {needed}", why, effect_s, choice=f"{record}={needed}")


def _facts(file: File) -> Doubts:
    """Without a profile, AICB writes its placeholder everywhere. The loss is reduced with 4 bytes a token, which tells the
    tokens of a micro-batch."""
    if all(ns <= PLACEHOLDER_NS for r, _ in file.runs for ns in r.compute_ns):
        why = "AICB writes these without --aiob_enable: the file holds messages, no compute"
        yield Check("no times", "every layer", "takes 0 or 1 ns", "measured times", why)
    tokens = (file.facts.sequence or 0) * (file.facts.micro_batch or 0)
    if tokens and file.tokens and tokens != file.tokens:
        found, expected = f"reduces 4 bytes of {file.tokens:,} tokens", f"workload.sequence x micro_batch = {tokens:,}"
        why = "One of the two facts is not that of the file, and all rates and moves follow from them"
        yield Check("tokens", "cross_entropy1", found, expected, why)


def _embedding(file: File) -> Doubts:
    """AICB averages the first, cold runs of the lookup with the others. As weight gradient, its variable still holds half the
    optimizer's time at the first embedding, and the last layer's at the next ones."""
    records, of = file.named(EMBEDDING), max(file.step("grad_param_compute").compute_ns)
    (has_s, number), (mean_s, _) = (_mean_s(records, phase) for phase in (FORWARD, WEIGHT_GRADIENT))
    # a lookup takes its memory traffic, or its launches
    needs_s = LOOKUP_PASSES * max(file.activation / MEMORY_BANDWIDTH, KERNEL_S) if file.activation else 0.0
    if needs_s and has_s > FAR_ABOVE * needs_s:
        why = f"A lookup moves {short(LOOKUP_PASSES * file.activation, 'B')}; AICB averages it with its cold start"
        yield _timed("embedding forward", f"{EMBEDDING}.forward", _time(has_s), needs_s, why, (has_s - needs_s) * number)
    mine, leaked = (file.micro[k].compute_ns[WEIGHT_GRADIENT] for k in (0, -1))
    whys, found = [], f"{_time(mine * NS)} in the first micro-batch"
    if mine > PLACEHOLDER_NS and of and 0.5 <= mine / of <= 0.75:  # mean of minimum + mean; no mean exceeds 3 minima
        whys.append(f"{_time(mine * NS)} is {mine / of:.0%} of grad_param_compute")
    if {r.compute_ns[WEIGHT_GRADIENT] for r, _ in records} - {mine} == {leaked} and leaked > PLACEHOLDER_NS:
        whys.append(f"{_time(leaked * NS)} is that of {file.micro[-1].name}")
        found += f", {_time(leaked * NS)} in the others"
    if records and whys:
        excess_ns, others_ns = file.first_excess_ns()  # read as once a step
        leaked_s = excess_ns * NS + (others_ns * NS if excess_ns > 0 else mean_s) * number
        told = f"{'; '.join(whys)}: AICB writes what another record left behind; the work is that of a lookup"
        yield _timed("embedding gradient", f"{EMBEDDING}.weight_gradient", found, needs_s, told, leaked_s - needs_s * number)


def _once(file: File) -> Doubts:
    """AICB times one division of all gradients of a rank by dp as the optimizer, and adds the fastest run to the mean.

    It all-reduces on TP 2 bytes of every parameter, without sequence parallelism only, where it means the norms, and the size
    of an activation, where it means a gradient.
    """
    record, tp = file.step("grad_param_compute"), file.header.tp
    dp = file.header.all_gpus // (tp * file.header.pp)
    has_s = sum(record.compute_ns) * NS
    needs_s = (file.dense / dp + file.experts / (dp // file.header.ep)) * ADAM_BYTES / MEMORY_BANDWIDTH
    gathered = dp > 1 and any(file.step("grad_gather").comm_bytes)
    if gathered and max(record.compute_ns) > PLACEHOLDER_NS and has_s > 2 * needs_s:
        why = (
            f"Parameters are gathered, so a rank updates 1/{dp} of them, {ADAM_BYTES} bytes each; AICB adds two timings of "
            "a division of all gradients of the rank"
        )
        yield _timed("optimizer", record.name, _time(has_s), needs_s, why, has_s - needs_s)
    rows = (
        ("layernorm", "layernorm", (2 * file.dense, 2 * (file.dense + file.experts)),
         "It is 2 bytes of all parameters of the rank; Megatron reduces norms on TP, and only with sequence parallelism"),
        ("embedding message", "embedding_grads", (file.activation,),
         "It is an activation; Megatron reduces a tied embedding's gradient between first and last stage, not on TP"),
    )  # fmt: skip
    for name, record_name, doubtful, why in rows:
        record = file.step(record_name)
        size = record.comm_bytes[INPUT_GRADIENT]
        if size and size in doubtful and record.collective[INPUT_GRADIENT] == "ALLREDUCE":
            effect_s = 2 * (tp - 1) / tp * size / NVLINK_BANDWIDTH if tp > 1 else None
            found, choice = f"all-reduces {short(size, 'B')} on TP", f"{record_name}=0 B"
            yield Check(name, record_name, found, "nothing", why, effect_s, choice=choice)


def _attention(file: File) -> Doubts:
    """AICB doubles attention's forward for --recompute_activations: its time, or without times its messages. It times latent
    attention with DeepSeek's kernels only, and writes 0 elsewhere."""
    attention, sent, activation = file.named("attention"), 2 * file.activation, short(file.activation, "B")
    timed = [(r, n, r.compute_ns[FORWARD], r.compute_ns[INPUT_GRADIENT]) for r, n in attention]
    doubled = [(r, n, ahead, back) for r, n, ahead, back in timed if back > PLACEHOLDER_NS and 0 <= ahead - 2 * back <= 1]
    contains = "checkpointing `none` is not none here, `full`"
    rows = (
        ("recompute", {r.name: _time(back * NS) for r, _, _, back in doubled}, "is twice its gradient", "the same",
         f"It contains a recompute: {contains} recomputes attention twice",
         sum((ahead - back) * n for _, n, ahead, back in doubled) * NS),
        ("recompute messages", {r.name: activation for r, _ in attention if sent and r.comm_bytes[FORWARD] == sent},
         f"sends {short(sent, 'B')}, twice an activation", activation,
         f"It contains a recompute's message: {contains} sends it twice more", None),
    )  # fmt: skip
    for name, once, found, expected, why, effect_s in rows:
        if once:
            first, *more = once
            choice = ", ".join(f"{each}.forward={value}" for each, value in once.items())
            found += "".join(f", {each} too" for each in more)
            yield Check(name, f"{first}.forward", found, expected, why, effect_s, choice=choice)
    mlp = any(max(r.compute_ns) > PLACEHOLDER_NS for r, _ in file.named("mlp"))
    if attention and mlp and not any(max(r.compute_ns) for r, _ in attention):
        why = "AICB times latent attention with DeepSeek's kernels only: without them the file's layers lack their attention"
        found, expected = "takes 0 ns, as all records of attention", "measured times, as those of the MLP"
        yield Check("no attention", attention[0][0].name, found, expected, why)


def _logits(file: File) -> Doubts:
    """AICB gives the final projection attention's time; without sequence parallelism it writes no record of it."""
    times, final = {r.compute_ns[INPUT_GRADIENT] for r, _ in file.named("attention")}, file.named(FINAL)
    if max(times, default=0) <= PLACEHOLDER_NS or any(r.compute_ns[FORWARD] not in times for r, _ in final):
        return
    name, (has_s, _), words = final[0][0].name if final else f"{FINAL}column", _mean_s(final, FORWARD), file.shares.vocabulary
    found, why = f"takes attention's {_time(has_s)}" if final else "is missing", "AICB does not write the logits' time"
    layers = (file.dense - (file.ends or 0.0) - file.positions) * file.header.tp
    if not words or file.moe or not layers > 0:
        yield Check("logits", name, found, "the logits: the time of 0.5 to 1.2 layers", why)
        return
    inner = [(r, n) for r, n in file.runs if not r.name.startswith((EMBEDDING, FINAL))]
    forward_s = sum(r.compute_ns[FORWARD] * n for r, n in inner) * NS / file.header.ga
    needs_s = forward_s * words * file.hidden / layers
    expected, why = f"about {_time(needs_s)} in each phase", f"{why}; here at a layer's rate, by parameters"
    yield Check("logits", name, found, expected, why, 3 * (has_s - needs_s) * file.header.ga, choice=f"{name}={_time(needs_s)}")


def _layers(file: File) -> Doubts:
    """AICB writes its placeholder where the experts' weight gradient belongs, and the layers of a stage as `vpp`."""
    moe = [(r, n) for r, n in file.runs if "moe" in r.name and r.compute_ns[FORWARD] > PLACEHOLDER_NS]
    bare = [(r, n) for r, n in moe if r.compute_ns[WEIGHT_GRADIENT] <= PLACEHOLDER_NS]
    if bare:
        first, (needs_s, number) = bare[0][0], _mean_s(bare, FORWARD)
        why = "A weight gradient has the work of its forward; AICB writes a placeholder for experts"
        record, found = f"{first.name}.weight_gradient", f"{first.compute_ns[WEIGHT_GRADIENT]} ns"
        yield _timed("expert gradient", record, found, needs_s, why, -needs_s * number)
    header = file.header
    if header.pp > 1 and header.vpp > 1 and header.vpp == file.layers:
        micro_s = sum(sum(r.compute_ns) * n for r, n in file.runs) * NS / header.ga
        why = f"AICB writes the layers of a stage, {header.vpp}, which reads as interleaving them and shrinks the bubble"
        effect_s, choice = -(header.pp - 1) * micro_s * (1 - 1 / header.vpp), "vpp=1 (--set, or fixed in a spec; no record)"
        yield Check("vpp", "the header", f"has vpp {header.vpp}", "1 without interleaving", why, effect_s, choice=choice)


CHECKS = (_facts, _embedding, _once, _attention, _logits, _layers)
