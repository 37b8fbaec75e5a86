"""Files in, numbers out: workloads, hardware and parallel plans, simulated by a compiled event engine.

This is the door; everything else in the package is behind it. It knows nothing of sweeps, clusters or result files.
"""

from sim_core.jit import use_cache_dir

use_cache_dir()  # before the first kernel is defined

from sim_core.errors import FormatError, SimError, SpecError, nearest, shown  # noqa: E402
from sim_core.hardware import KEYS as HARDWARE_KEYS  # noqa: E402
from sim_core.hardware import (  # noqa: E402
    Hardware,
    HardwareTable,
    hardware_table,
    hardware_yaml,
    parse_hardware,
    preset_names,
    read_hardware,
)
from sim_core.inputs import SIMAI, TRACE, Facts, input_paths, kind_of, read_traces, read_workload  # noqa: E402
from sim_core.jit import cache_dir, compiling_alone, is_compiled, source_hash, source_hashes  # noqa: E402
from sim_core.lower import METRICS, PARTS  # noqa: E402
from sim_core.plan import (  # noqa: E402
    CHECKPOINTING,
    EXPLANATIONS,
    FIDELITIES,
    FIRST_FAILURE,
    PRECISIONS,
    REASON,
    REASONS,
    SCHEDULES,
    SPLITS,
    STATUSES,
    Plans,
    slice_plans,
)
from sim_core.readers.op_table import Repeat  # noqa: E402
from sim_core.simulator import Events, Results, legality, simai_breakdown, simulate, trace  # noqa: E402
from sim_core.summary import Summary, Traffic, summarize  # noqa: E402
from sim_core.traces.job import Job, Rank  # noqa: E402
from sim_core.traces.program import Played  # noqa: E402
from sim_core.traces.replay import Replay, recorded, replay  # noqa: E402
from sim_core.traces.statistics import JobStatistics, statistics  # noqa: E402
from sim_core.units import quantity, short  # noqa: E402
from sim_core.workload import BasePlan, Workload  # noqa: E402
from sim_core.writer import export_simai  # noqa: E402

__all__ = [
    "CHECKPOINTING",
    "EXPLANATIONS",
    "FIDELITIES",
    "FIRST_FAILURE",
    "HARDWARE_KEYS",
    "METRICS",
    "PARTS",
    "PRECISIONS",
    "REASON",
    "REASONS",
    "SCHEDULES",
    "SIMAI",
    "SPLITS",
    "STATUSES",
    "TRACE",
    "BasePlan",
    "Events",
    "Facts",
    "FormatError",
    "Hardware",
    "Job",
    "JobStatistics",
    "Played",
    "Rank",
    "Repeat",
    "Replay",
    "HardwareTable",
    "Plans",
    "Results",
    "SimError",
    "SpecError",
    "Summary",
    "Traffic",
    "Workload",
    "cache_dir",
    "compiling_alone",
    "export_simai",
    "hardware_table",
    "hardware_yaml",
    "is_compiled",
    "legality",
    "nearest",
    "parse_hardware",
    "preset_names",
    "quantity",
    "read_hardware",
    "input_paths",
    "kind_of",
    "read_traces",
    "recorded",
    "statistics",
    "read_workload",
    "replay",
    "shown",
    "simai_breakdown",
    "simulate",
    "slice_plans",
    "short",
    "source_hash",
    "source_hashes",
    "summarize",
    "trace",
]
