"""Logs of Megatron-LM of all ages and of its forks: argument dump, iteration lines, parameters and memory of ranks."""

import re
from collections import Counter
from collections.abc import Mapping

from sim_core import flag_of, megatron_arguments as model, says_model
from sweep.frameworks import deepspeed, megatron, megatron_sizes as sizes
from sweep.frameworks.megatron_choices import INSTANCES
from sweep.frameworks.plan import Plan
from sweep.inputs.logs.found import LogReader, told_by
from sweep.inputs.told import PLAN_FIELDS

BEGIN = re.compile(r"-{3,} arguments -{3,}")
END = re.compile(r"-{3,} end of arguments -{3,}")
ARGUMENT = re.compile(r"(?:^|[\s:\]>])([A-Za-z_]\w*) (?:\.{2,}|) (\S.*)$")
SUFFIX = re.compile(r"\.{3,}(?:updated|default)$")
"""What GPT-NeoX prints after a value."""
RATE = re.compile(r"\bsamples/sec:\s*(\d{1,9}\.\d+)\s*\|")
TOTAL = re.compile(r"\btotal parameters (\d{1,6}\.\d{3}) B\b")
ITERATION = re.compile(r"iteration\s+(\d{1,12})\s*/\s*\d{1,12}\s*\|")
ELAPSED = re.compile(r"elapsed time per iteration \((ms|s)\):\s*(\d{1,12}(?:\.\d{1,9})?)(?:/\d{1,12}\.\d{1,9})?\s*\|")
"""Seconds; Primus adds their mean."""
BATCH = re.compile(r"global batch size:\s*(\d{1,9})\s*\|")
WORLD = re.compile(r"using world size:\s*(\d{1,9})\b")
WORLD_SIZES = {
    each.field: re.compile(rf"(?<![\w-]){each.flag[2:].removesuffix('-size')}[- ]size:\s*(\d{{1,9}})\b")
    for each in (megatron.DP, sizes.CP, sizes.TP, sizes.PP)
}
PARAMETERS = re.compile(r"number of parameters on \(tensor, pipeline\)\s*model parallel rank \((\d+), (\d+)\): (\d+)(?!\d)")
OLD_PARAMETERS = re.compile(r"number of parameters on model parallel rank (\d+): (\d+)(?!\d)")
MEMORY = re.compile(r"\bmax allocated: (\d{1,9}(?:\.\d+)?) \|")
IN_USE = re.compile(r"(?:hip|rocm|max) mem usage[\w/]*: (\d{1,5}(?:\.\d+)?)Gi?B/")
"""Of Primus: all that is in use on a device, in GiB by either name."""
ALLOCATED = "max allocated"
PADDED = re.compile(r"padded vocab \(size: (\d+)\) with \d+ dummy tokens \(new size: \d+\)")
OTHER_WORK = ("validation loss at", "saving checkpoint", "saved checkpoint", "Dumping profiler", "test loss at")
SWITCHES = ("flexpipe_config", "data_parallel_size_of_each_op")
"""Arguments of forks that keep the plan in a file of their own."""
UNEVEN = (sizes.LAYOUT, sizes.FIRST_STAGE, sizes.LAST_STAGE)
"""Arguments of stages that are not alike."""
NUMBERS = (model.LAYERS, model.HIDDEN, model.HEADS, model.FFN, model.HEAD_DIM)


STATED = tuple(each.name for each in megatron.STATED)
"""Arguments that state the plan."""


class MegatronLog(LogReader):
    """Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge, GPT-NeoX: all print Megatron's iteration line."""

    FRAMEWORK = "Megatron-LM"
    KNOWN_BY = (
        "`elapsed time per iteration (ms):`, its dump of arguments, or `using world size:`; Megatron-DeepSpeed, "
        "Megatron-Bridge and GPT-NeoX print the same"
    )
    KEYS = (
        b"iteration", b"arguments --", b"number of parameters on", b"max allocated", b"world size",
        b"padded vocab", b"loss at", b"checkpoint", b"total parameters",
    )  # fmt: skip
    DUMP, OPENS = (b" ..", b"  "), (b"arguments --",)
    SIGNS = (
        r"elapsed time per iteration \(ms\):",
        r"-{6,} arguments -{6,}",
        r"using world size: \d+[, ].*parallel",
        r"number of parameters on \(tensor, pipeline\)",
    )

    _vocabulary: int | None = None
    _batch: int | None = None
    _samples_first = False

    def __init__(self) -> None:
        super().__init__()
        self._before: Mapping[str, str] = {}  # settings of the job before one that was started again
        self._again: set[str] = set()  # of which a dump gives different values
        self._ranks: dict[tuple[int, int], int] = {}
        self._old_ranks: list[int] = []

    def take(self, line: str) -> None:
        if "arguments ---" in line:
            self._border(line)
        elif "elapsed time per iteration" in line:
            self._iteration(line)
        elif self.in_dump and (argument := ARGUMENT.search(line)):
            value = SUFFIX.sub("", argument[2].strip())
            if self.settings.setdefault(argument[1], value) != value:
                self._again.add(argument[1])
            return
        elif "number of parameters on" in line:
            for match in PARAMETERS.finditer(line):
                self._ranks[int(match[1]), int(match[2])] = int(match[3])
            self._old_ranks += [int(match[2]) for match in OLD_PARAMETERS.finditer(line)]
        elif "using world size" in line:
            self._world(line)
        elif "padded vocab" in line and (padded := PADDED.search(line)):
            self._vocabulary = int(padded[1])
        elif "total parameters" in line and (total := TOTAL.search(line)):
            self.job.parameters = round(float(total[1]) * 1e9)
        elif any(words in line for words in OTHER_WORK):
            self.taken.disturb()
        self._memory(line)

    def _memory(self, line: str) -> None:
        """What tensors take, or, until that is printed, all that is in use."""
        for match in MEMORY.finditer(line) if ALLOCATED in line else ():
            if self.job.memory_kind != ALLOCATED:
                self.job.peak_memory_gib = None
            self.job.memory(float(match[1]) / 1024, ALLOCATED)
        for match in IN_USE.finditer(line) if "mem usage" in line and self.job.memory_kind != ALLOCATED else ():
            self.job.memory(float(match[1]), "in use on the device")

    def _border(self, line: str) -> None:
        """The begin or the end of a dump. One after steps is that of a job that was started again."""
        if self.in_dump and (END.search(line) or self.settings):
            self._end_of_dump()
        elif BEGIN.search(line) and not self.in_dump:
            self.in_dump = True
            if len(self.taken):
                self._start()
            self.taken.begins = True

    def _start(self) -> None:
        """A job is started after another in the same file."""
        self._before = self.settings or self._before
        self.settings, self._again, self._ranks, self._old_ranks = {}, set(), {}, []
        self.taken.disturb()

    def _end_of_dump(self) -> None:
        """Of a job that was started again with another plan or model only its own steps count."""
        self.in_dump = False
        before, now = _costly(self._before), _costly(self.settings)
        changed = [name for name in now | before if before.get(name) != now.get(name)]
        if self._before and changed:
            self.start_again()
            self._batch = None
            self.job.notes += (f"several runs: the last counts, with another {', '.join(changed)}",)
        self._before = {}

    def _iteration(self, line: str) -> None:
        iteration, elapsed, batch = ITERATION.search(line), ELAPSED.search(line), BATCH.search(line)
        if iteration is None or elapsed is None:
            return
        if self.in_dump:
            self._end_of_dump()
        seconds = float(elapsed[2]) * (1e-3 if elapsed[1] == "ms" else 1.0)
        size = int(batch[1]) if batch else None
        if batch is None and (rate := RATE.search(line)):  # in the place of the batch, where their product is whole
            product = float(rate[1]) * seconds
            size = round(product) if product >= 1 and abs(product - round(product)) < min(5e-3 * product, 0.1) else None
        if self._batch is not None and size is not None and size != self._batch:
            self.start_again()  # a batch that grows: the steps before were of another one
        self._batch = size or self._batch
        if seconds > 0:
            self.taken.take(int(iteration[1]), seconds)
        self._samples_first = self._samples_first or line.lstrip().startswith("samples/sec")

    def _world(self, line: str) -> None:
        world = WORLD.search(line)
        if world and self.settings:
            self._start()
        elif world is None or self.told:
            return
        self.told = {"all_gpus": int(world[1])}
        self.told |= {name: int(size) for name, size in told_by(line, WORLD_SIZES)}

    def found(self) -> bool:
        job, values = self.job, self.settings
        if not (values or self.told or len(self.taken) or self._ranks or job.peak_memory_gib):
            return False
        job.stack = deepspeed.PAGE if self._samples_first else megatron.stack_of(values)
        if job.stack == deepspeed.PAGE:
            job.framework = "Megatron-DeepSpeed"
        job.facts, lines = megatron.stated(values, job.stack)
        job.notes += tuple(lines)
        plan = self._plan()
        if self._batch is not None:
            plan["global_batch"] = self._batch
        if uneven := [each.name for each in UNEVEN if each.word(values, "None") != "None"]:
            job.notes += (f"{uneven[0]}: not read, stages are taken as equal; give --set layer_split=...",)
        numbers = (*NUMBERS, model.KV_HEADS) if model.GROUPED.on(values) else NUMBERS
        self.model = {each.field: number for each in numbers if (number := each.whole(values))}
        if vocabulary := self._vocabulary or model.PADDED_VOCABULARY.whole(values):
            self.model["vocabulary"] = vocabulary
        if self.in_dump:
            plan, job.refused = {}, "the dump of arguments has no end"
        job.plan, self.arguments = plan, {} if self.in_dump else values
        if changed := sorted(self._again.intersection(STATED)):
            job.notes += (f"the dump gives {', '.join(changed)} twice with different values: the first is taken",)
        self._parameters(plan.get("tp"), plan.get("pp"))
        return True

    def _plan(self) -> Plan:
        """The plan of the dump; where it cannot be believed, the job says why."""
        values, world = self.settings, self.told
        if not values and not world:
            return {}
        gpus, told = megatron.WORLD.whole(values) or world.get("all_gpus"), megatron.fields_of(values)
        rest = {
            "all_gpus": gpus,
            "global_batch": told.get("global_batch"),
            "sequence": model.SEQUENCE.whole(values) or None,
            "precision": told["precision"] if values else None,
        }
        tp, pp, dp = (each.whole(values) or world.get(each.field) for each in (sizes.TP, sizes.PP, megatron.DP))
        cp = sizes.CP.whole(values) or world.get("cp") or 1
        self.job.refused = self._lies(gpus, tp, pp, dp, cp)
        if self.job.refused:
            return rest
        plan = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, **rest}
        if not values:
            return plan
        plan |= {name: told.get(name) for name in ("vpp", "ep", "micro_batch")}
        plan["sequence_parallel"] = sizes.SEQUENCE_PARALLEL.on(values)
        return plan | {name: value for name, value in _choices(values).items() if name in PLAN_FIELDS}

    def _lies(self, gpus: int | None, tp: int | None, pp: int | None, dp: int | None, cp: int) -> str:
        """Why the sizes of a dump are not the plan that ran; "" where nothing speaks against them."""
        if fork := next((name for name in SWITCHES if self.settings.get(name, "None") != "None"), ""):
            return f"the dump has {fork}: this fork keeps the plan in a file of its own"
        if tp is None or pp is None:
            old = [each.name for each in (sizes.OLD_TP, sizes.OLD_PP) if each.name in self.settings]
            names = f", only {' and '.join(old)} of an older DeepSpeed" if old else ""
            return f"the dump has no {(sizes.TP if tp is None else sizes.PP).name}{names}"
        if dp is None:
            return f"the dump has no {megatron.DP.name}"
        if gpus is None:
            return f"the dump has no {megatron.WORLD.name}"
        if tp * pp * dp * cp != gpus:
            product = f"tp {tp} x pp {pp} x dp {dp}" + (f" x cp {cp}" if cp > 1 else "")
            return f"{megatron.WORLD.name} {gpus} is not {product}: the plan is kept elsewhere"
        if outside := next((rank for rank in self._ranks if rank[0] >= tp or rank[1] >= pp), None):
            return f"a rank of the log is ({outside[0]}, {outside[1]}), outside tp {tp} x pp {pp}: the plan is kept elsewhere"
        return ""

    def _parameters(self, tp: object, pp: object) -> None:
        """Those of all stages; a rank whose line cannot be read has as many as others of its stage, as tensor-parallel ranks
        hold equal shares."""
        if not isinstance(tp, int) or not isinstance(pp, int):
            self.job.parameters = sum(self._ranks.values()) or sum(self._old_ranks) or self.job.parameters
            return
        by_stage: dict[int, Counter[int]] = {}
        for (_, stage), count in self._ranks.items():
            by_stage.setdefault(stage, Counter())[count] += 1
        if set(by_stage) == set(range(pp)):
            self.job.parameters = sum(tp * counts.most_common(1)[0][0] for counts in by_stage.values())
        elif by_stage:
            self.job.notes += (f"parameters of {pp - len(by_stage)} of {pp} stages cannot be read",)


def _costly(values: Mapping[str, str]) -> dict[str, object]:
    """What of a dump decides the time of a step: sizes, model, and what its arguments mean for a plan."""
    own = {name: value for name, value in values.items() if says_model(flag_of(name))}
    return {**{name: values.get(name) for name in STATED}, **own, **_choices(values), INSTANCES.field: INSTANCES.whole(values)}


def _choices(values: Mapping[str, str]) -> Plan:
    """What the arguments mean for a plan besides its sizes and its pipeline."""
    told = megatron.in_order(megatron.fields_of(values))
    return {name: value for name, value in told.items() if name not in (*megatron.SIZES, "layer_split", "overlap_pp")}
