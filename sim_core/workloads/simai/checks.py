"""Doubtful records of a SimAI text: known artefacts of its generator AICB, each with the evidence that it is one.

Sources: aliyun/aicb (`AIOB_simAI_workload_generator.py`, `utils/utils.py`, `AiobMegatron.py`, `MockedMegatron.py`) for what
the generator writes; Megatron-LM (`distributed/finalize_model_grads.py`, `optimizer/distrib_optimizer.py`) for a step.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Floats
from sim_core.units import NS, short
from sim_core.workloads.check import Check
from sim_core.workloads.facts import Facts
from sim_core.workloads.simai.model import Sizes, model_of, sizes_of
from sim_core.workloads.simai.records import FINAL, PHASES, PLACEHOLDER_NS, Choice, choices_of, with_records
from sim_core.workloads.simai.sections import EMBEDDING, Sections, sections_of
from sim_core.workloads.simai.sizes import first_excess_ns
from sim_core.workloads.simai.text import Record, SimaiText, read_simai_text
from sim_core.workloads.simai.workload import workload_from_simai
from sim_core.workloads.workload import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Workload

MEMORY_BANDWIDTH: Final = 1.555e12
"""Bytes/s, for the time that memory traffic takes: A100-40GB (NVIDIA A100 data sheet); newer devices are faster."""
NVLINK_BANDWIDTH: Final = 300e9
"""Bytes/s and direction, for the time of an all-reduce on TP: A100 (the same data sheet)."""
LOOKUP_PASSES: Final = 5
"""Activations that an embedding moves: reads words and positions, writes the sum, transposes it (a read and a write)."""
KERNEL_S: Final = 5e-6
"""What the shortest kernel takes with its launch."""
ADAM_BYTES: Final = 30
"""Bytes that Adam moves per parameter: fp32 gradient in; fp32 weight and two moments in and out; bf16 weight out."""


FAR_ABOVE: Final = 10


class File(NamedTuple):
    """A text and its numbers. `runs[k]`: how often the micro-batches of a step run distinct record k on a stage."""

    text: SimaiText
    sections: Sections
    sizes: Sizes
    tokens: int | None  # of a micro-batch, as the user gives them
    runs: Floats
    compute_s: float  # of all records in a step

    def named(self, *starts: str) -> list[tuple[Record, float]]:
        """The records of the micro-batches whose names begin so, each with its runs in a step."""
        pairs = zip(self.text.records, self.runs, strict=True)
        return [(record, float(n)) for record, n in pairs if n and record.name.startswith(starts)]

    def step(self, name: str) -> Record | None:
        """The once-per-step record of that name."""
        return next((record for record in self.text.at(self.sections.once) if record.name == name), None)

    def lookup_s(self) -> float:
        """An embedding lookup: its memory traffic, or its launches; 0 if the activation's size is unknown."""
        pass_s = self.sizes.activation / MEMORY_BANDWIDTH
        return LOOKUP_PASSES * max(pass_s, KERNEL_S) if pass_s else 0.0

    def all_reduce_s(self, size: float) -> float | None:
        """An all-reduce on TP: 2 (n - 1) / n bytes; None without a group."""
        tp = self.text.header.tp
        return 2 * (tp - 1) / tp * size / NVLINK_BANDWIDTH if tp > 1 else None


def file_of(text: SimaiText, facts: Facts) -> File:
    """A text as the checks see it."""
    sections = sections_of(text, [])
    sizes = sizes_of(text, sections, facts)
    tokens = facts.sequence * facts.micro_batch if facts.sequence and facts.micro_batch else None
    counts = np.bincount(text.order[sections.repetitions].ravel(), minlength=len(text.records)).astype(np.float64)
    runs = counts * (text.header.ga / len(sections.repetitions))
    once = np.bincount(text.order[np.array(sections.once, np.int64)], minlength=len(text.records))
    compute_ns = np.array([float(sum(r.compute_ns)) for r in text.records])
    return File(text, sections, sizes, tokens, runs, float((compute_ns * (runs + once)).sum()) * NS)


def runs_of(records: list[tuple[Record, float]]) -> float:
    """Runs of records in a step."""
    return sum(n for _, n in records)


def mean_s(records: list[tuple[Record, float]], phase: int) -> float:
    """Mean seconds of a phase over the runs."""
    return sum(r.compute_ns[phase] * n for r, n in records) / runs_of(records) * NS if records else 0.0


def time(seconds: float) -> str:
    """A time of three digits, as `workload.records` takes it."""
    return short(float(f"{seconds:.3g}"), "s")


def read_checked(path: str, facts: Facts) -> tuple[Workload, tuple[str, ...]]:
    """The workload of a file with the values of `facts.records`, its checks and the model it implies; warnings.

    Raises SpecError for a value that does not fit the text, FormatError, OSError.
    """
    records = facts.records or {}
    choices = choices_of(records)
    text = with_records(read_simai_text(path, all_gpus=facts.all_gpus), choices)
    workload, warnings = workload_from_simai(text, facts)
    file = file_of(text, facts)
    implied = model_of(file.sizes, text.header, facts)
    repaired = replace(
        workload,
        sequence=implied.sequence,
        experts=facts.experts or file.sizes.number or None,
        checks=checks_of(file, choices),
        implied=implied,
        records=records,
    )
    return repaired, warnings


def checks_of(file: File, choices: tuple[Choice, ...]) -> tuple[Check, ...]:
    """The checks that fire. Each compares the file with itself, or with a bound on the work that a record stands for."""
    kept = {(c.record, c.phase) for c in choices if c.ns is None and c.size is None}
    checks = []
    for check in (doubt for look in CHECKS for doubt in look(file)):
        name, _, phase = check.record.partition(".")
        own = {(name, -1), (name, PHASES.index(phase) if phase else -1)}
        share = check.effect_s / file.compute_s if check.effect_s is not None and file.compute_s else None
        checks.append(replace(check, share=share, kept=bool(own & kept)))
    return tuple(checks)


def _no_times(file: File) -> Iterator[Check]:
    """Without a profile, AICB writes its placeholder everywhere."""
    if all(ns <= PLACEHOLDER_NS for r, _ in file.named("") for ns in r.compute_ns):
        yield Check(
            name="no times",
            record="every layer",
            found="takes 0 or 1 ns",
            expected="measured times",
            why="AICB writes these without --aiob_enable: the file holds messages, no compute",
            effect_s=None,
        )


def _tokens(file: File) -> Iterator[Check]:
    """The loss is reduced with 4 bytes a token, which tells the tokens of a micro-batch."""
    if file.tokens and file.sizes.tokens and file.tokens != file.sizes.tokens:
        yield Check(
            name="tokens",
            record="cross_entropy1",
            found=f"reduces 4 bytes of {file.sizes.tokens:,} tokens",
            expected=f"workload.sequence x micro_batch = {file.tokens:,}",
            why="One of the two facts is not that of the file, and all rates and moves follow from them",
            effect_s=None,
        )


def _embedding_forward(file: File) -> Iterator[Check]:
    """AICB averages the first, cold runs of the lookup with the others."""
    records = file.named(EMBEDDING)
    forward_s, lookup_s = mean_s(records, FORWARD), file.lookup_s()
    if lookup_s and forward_s > FAR_ABOVE * lookup_s:
        yield Check(
            name="embedding forward",
            record=f"{EMBEDDING}.forward",
            found=f"takes {time(forward_s)}",
            expected=f"about {time(lookup_s)}",
            why=f"A lookup moves {short(LOOKUP_PASSES * file.sizes.activation, 'B')}; AICB averages it with its cold start",
            effect_s=(forward_s - lookup_s) * runs_of(records),
            choice=f"{EMBEDDING}.forward={time(lookup_s)}",
        )


def _embedding_gradient(file: File) -> Iterator[Check]:
    """AICB's variable still holds half the optimizer's time at the first embedding, and the last layer's at the next ones."""
    records, optimizer = file.named(EMBEDDING), file.step("grad_param_compute")
    if not records:
        return
    lines = file.sections.repetitions[0]
    first, last = file.text.at((lines[0], lines[-1]))
    mine, leaked = first.compute_ns[WEIGHT_GRADIENT], last.compute_ns[WEIGHT_GRADIENT]
    of = max(optimizer.compute_ns) if optimizer else 0
    why = []
    if mine > PLACEHOLDER_NS and of and 0.5 <= mine / of <= 0.75:  # mean of minimum + mean; no mean exceeds 3 minima
        why.append(f"{time(mine * NS)} is {mine / of:.0%} of grad_param_compute")
    later = {r.compute_ns[WEIGHT_GRADIENT] for r, _ in records} - {mine} == {leaked} and leaked > PLACEHOLDER_NS
    if later:
        why.append(f"{time(leaked * NS)} is that of {last.name}")
    if why:
        lookup_s = file.lookup_s()
        excess_ns, others_ns = first_excess_ns(file.text, file.sections)  # read as once a step
        of_each = others_ns * NS if excess_ns > 0 else mean_s(records, WEIGHT_GRADIENT)
        leaked_s = excess_ns * NS + of_each * runs_of(records)
        yield Check(
            name="embedding gradient",
            record=f"{EMBEDDING}.weight_gradient",
            found=f"takes {time(mine * NS)} in the first micro-batch"
            + (f", {time(leaked * NS)} in the others" if later else ""),
            expected=f"about {time(lookup_s)}",
            why=f"{'; '.join(why)}: AICB writes what another record left behind; the work is that of a lookup",
            effect_s=leaked_s - lookup_s * runs_of(records),
            choice=f"{EMBEDDING}.weight_gradient={time(lookup_s)}",
        )


def _optimizer(file: File) -> Iterator[Check]:
    """AICB times one division of all gradients of a rank by dp, and adds the fastest run to the mean."""
    record, gathered = file.step("grad_param_compute"), file.step("grad_gather")
    header = file.text.header
    dp = header.all_gpus // (header.tp * header.pp)
    if record is None or gathered is None or dp == 1 or not sum(gathered.comm_bytes):
        return
    record_s = sum(record.compute_ns) * NS
    shard = file.sizes.dense / dp + file.sizes.experts / (dp // header.ep)
    adam_s = shard * ADAM_BYTES / MEMORY_BANDWIDTH
    if max(record.compute_ns) > PLACEHOLDER_NS and record_s > 2 * adam_s:
        yield Check(
            name="optimizer",
            record="grad_param_compute",
            found=f"takes {time(record_s)}",
            expected=f"about {time(adam_s)}",
            why=f"Parameters are gathered, so a rank updates 1/{dp} of them, {ADAM_BYTES} bytes each; AICB adds two timings of "
            "a division of all gradients of the rank",
            effect_s=record_s - adam_s,
            choice=f"grad_param_compute={time(adam_s)}",
        )


def _messages_on_tp(file: File) -> Iterator[Check]:
    """AICB all-reduces on TP 2 bytes of every parameter, without sequence parallelism only, where it means the norms, and the
    size of an activation, where it means a gradient."""
    sizes = file.sizes
    rows = (
        ("layernorm", "layernorm", (2 * sizes.dense, 2 * (sizes.dense + sizes.experts)),
         "It is 2 bytes of all parameters of the rank; Megatron reduces norms on TP, and only with sequence parallelism"),
        ("embedding message", "embedding_grads", (sizes.activation,),
         "It is an activation; Megatron reduces a tied embedding's gradient between first and last stage, not on TP"),
    )  # fmt: skip
    for name, record_name, doubtful, why in rows:
        record = file.step(record_name)
        size = record.comm_bytes[INPUT_GRADIENT] if record else 0
        if record and size and size in doubtful and record.collective[INPUT_GRADIENT] == "ALLREDUCE":
            yield Check(
                name=name,
                record=record_name,
                found=f"all-reduces {short(size, 'B')} on TP",
                expected="nothing",
                why=why,
                effect_s=file.all_reduce_s(size),
                choice=f"{record_name}=0 B",
            )


def _recompute(file: File) -> Iterator[Check]:
    """AICB doubles attention's forward for --recompute_activations."""
    doubled = [
        (r, n)
        for r, n in file.named("attention")
        if r.compute_ns[INPUT_GRADIENT] > PLACEHOLDER_NS and 0 <= r.compute_ns[FORWARD] - 2 * r.compute_ns[INPUT_GRADIENT] <= 1
    ]
    if doubled:
        once = {r.name: r.compute_ns[INPUT_GRADIENT] * NS for r, _ in doubled}
        names = list(once)
        yield Check(
            name="recompute",
            record=f"{names[0]}.forward",
            found=f"is twice its gradient{''.join(f', {name} too' for name in names[1:])}",
            expected="the same",
            why="It contains a recompute: checkpointing `none` is not none here, `full` recomputes attention twice",
            effect_s=sum((r.compute_ns[FORWARD] - r.compute_ns[INPUT_GRADIENT]) * n for r, n in doubled) * NS,
            choice=", ".join(f"{name}.forward={time(seconds)}" for name, seconds in once.items()),
        )


def _recompute_messages(file: File) -> Iterator[Check]:
    """Without times, AICB doubles attention's forward messages for --recompute_activations."""
    sent = 2 * file.sizes.activation
    doubled = list(dict.fromkeys(r.name for r, _ in file.named("attention") if sent and r.comm_bytes[FORWARD] == sent))
    if doubled:
        activation = short(file.sizes.activation, "B")
        yield Check(
            name="recompute messages",
            record=f"{doubled[0]}.forward",
            found=f"sends {short(sent, 'B')}, twice an activation{''.join(f', {name} too' for name in doubled[1:])}",
            expected=activation,
            why="It contains a recompute's message: checkpointing `none` is not none here, `full` sends it twice more",
            effect_s=None,
            choice=", ".join(f"{name}.forward={activation}" for name in doubled),
        )


def _no_attention(file: File) -> Iterator[Check]:
    """AICB times latent attention with DeepSeek's kernels only, and writes 0 elsewhere."""
    attention = file.named("attention")
    of_attention, of_mlp = (max((max(r.compute_ns) for r, _ in each), default=0) for each in (attention, file.named("mlp")))
    if attention and not of_attention and of_mlp > PLACEHOLDER_NS:
        yield Check(
            name="no attention",
            record=attention[0][0].name,
            found="takes 0 ns, as all records of attention",
            expected="measured times, as those of the MLP",
            why="AICB times latent attention with DeepSeek's kernels only: without them the file's layers lack their attention",
            effect_s=None,
        )


def _logits(file: File) -> Iterator[Check]:
    """AICB gives the final projection attention's time; without sequence parallelism it writes no record of it."""
    attention, final = file.named("attention"), file.named(FINAL)
    times = {r.compute_ns[INPUT_GRADIENT] for r, _ in attention}
    if max(times, default=0) <= PLACEHOLDER_NS or any(r.compute_ns[FORWARD] not in times for r, _ in final):
        return
    has_s, needs_s = mean_s(final, FORWARD), _logits_s(file)
    known, name = needs_s is not None, final[0][0].name if final else f"{FINAL}column"
    yield Check(
        name="logits",
        record=name,
        found=f"takes attention's {time(has_s)}" if final else "is missing",
        expected=f"about {time(needs_s or 0.0)} in each phase" if known else "the logits: the time of 0.5 to 1.2 layers",
        why="AICB does not write the logits' time" + ("; here at a layer's rate, by parameters" if known else ""),
        effect_s=3 * (has_s - needs_s) * file.text.header.ga if needs_s is not None else None,
        choice=f"{name}={time(needs_s)}" if needs_s is not None else "",
    )


def _logits_s(file: File) -> float | None:
    """Forward of the logits at the rate of a layer, by parameters; None without the vocabulary, or with experts."""
    sizes, tp = file.sizes, file.text.header.tp
    if not sizes.words or not sizes.ends or sizes.moe:
        return None
    layers = (sizes.dense - sizes.ends - sizes.positions) * tp
    inner = [(r, n) for r, n in file.named("") if not r.name.startswith((EMBEDDING, FINAL))]
    forward_s = sum(r.compute_ns[FORWARD] * n for r, n in inner) * NS / file.text.header.ga
    return forward_s * sizes.words * sizes.hidden / layers if layers > 0 else None


def _expert_gradient(file: File) -> Iterator[Check]:
    """AICB writes its placeholder where the experts' weight gradient belongs."""
    moe = [(r, n) for r, n in file.named("") if "moe" in r.name and r.compute_ns[FORWARD] > PLACEHOLDER_NS]
    bare = [(r, n) for r, n in moe if r.compute_ns[WEIGHT_GRADIENT] <= PLACEHOLDER_NS]
    if bare:
        name, forward_s = bare[0][0].name, mean_s(bare, FORWARD)
        yield Check(
            name="expert gradient",
            record=f"{name}.weight_gradient",
            found=f"takes {bare[0][0].compute_ns[WEIGHT_GRADIENT]} ns",
            expected=f"about {time(forward_s)}",
            why="A weight gradient has the work of its forward; AICB writes a placeholder for experts",
            effect_s=-forward_s * runs_of(bare),
            choice=f"{name}.weight_gradient={time(forward_s)}",
        )


def _chunks(file: File) -> Iterator[Check]:
    """AICB writes the layers of a stage as `vpp`."""
    header = file.text.header
    if header.pp > 1 and header.vpp > 1 and header.vpp == file.sizes.layers:
        micro_s = sum(sum(r.compute_ns) * n for r, n in file.named("")) * NS / header.ga
        yield Check(
            name="vpp",
            record="the header",
            found=f"has vpp {header.vpp}",
            expected="1 without interleaving",
            why=f"AICB writes the layers of a stage, {header.vpp}, which reads as interleaving them and shrinks the bubble",
            effect_s=-(header.pp - 1) * micro_s * (1 - 1 / header.vpp),
            choice="vpp=1 (--set, or fixed in a spec; no record)",
        )


CHECKS: Final[tuple[Callable[[File], Iterator[Check]], ...]] = (
    _no_times,
    _tokens,
    _embedding_forward,
    _embedding_gradient,
    _optimizer,
    _messages_on_tp,
    _recompute,
    _recompute_messages,
    _no_attention,
    _logits,
    _expert_gradient,
    _chunks,
)
