"""Files in, numbers out: workloads, hardware and parallel plans, simulated by a compiled event engine.

This module is the public interface of the package, which does not know sweeps, clusters or result files.
"""

from sim_core.bounding import FASTER, Bounds, bounds, coarse_bounds, coarse_bounds_over, ignored_columns
from sim_core.compiling import compile_steps, compile_tables
from sim_core.costing.calibration import calibrated, read_calibrated
from sim_core.costing.one_collective import collective_seconds
from sim_core.costing.peak import memory_basis
from sim_core.costing.traffic import sent_bytes
from sim_core.describing import Group, Shape, shape_of
from sim_core.documents import key_path, located, parse_json, parse_yaml, read_document
from sim_core.engine.codes import SCHEDULES
from sim_core.errors import (
    FormatError,
    SimError,
    SpecError,
    named,
    nearest,
    one_line,
    shown,
)
from sim_core.exporting import export_simai
from sim_core.hardware.description import KEYS as HARDWARE_KEYS
from sim_core.hardware.description import (
    Hardware,
    fabric_names,
    hardware_yaml,
    is_preset,
    parse_hardware,
    preset_names,
    read_hardware,
)
from sim_core.hardware.kernels.attention import attention_backward_s, attention_forward_s
from sim_core.hardware.kernels.device import load_kernels, measured_kernels, precisions
from sim_core.hardware.kernels.gemm import PHASES as GEMM_PHASES
from sim_core.hardware.kernels.gemm import gemm_s
from sim_core.hardware.surface import AttentionSurface, GemmSurface, Surface
from sim_core.hardware.table import (
    HardwareTable,
    hardware_table,
)
from sim_core.jit import BOUNDS, COMPILE_AFTER_S, PLAIN_PYTHON, STEP, cache_dir, compiling_alone, is_compiled, use_kernels
from sim_core.limits import LARGEST, whole_number
from sim_core.metrics import (
    MEMORY,
    METRICS,
    PARTS,
)
from sim_core.models.description import Model
from sim_core.models.flops import model_flops_per_token
from sim_core.models.parameters import Parameters, parameters
from sim_core.models.parsing import model_document, model_yaml, parse_model
from sim_core.models.precision import PRECISION_NAMES
from sim_core.models.reading import model_names, read_model
from sim_core.models.recompute import RECOMPUTE_MODULES
from sim_core.models.stack import Stack, read_stack, stack_names
from sim_core.planning.building import plans, sends_in_background
from sim_core.planning.columns import CHECKPOINTING, FIDELITIES, SPLITS, Plans, slice_plans
from sim_core.planning.fields import ALTERNATIVES
from sim_core.planning.fields import DEFAULTS as PLAN_DEFAULTS
from sim_core.planning.fields import FIELDS as PLAN_FIELDS
from sim_core.planning.fields import Field as PlanField
from sim_core.planning.labels import checkpointing_codes
from sim_core.planning.legality import (
    EXPLANATIONS,
    FIRST_FAILURE,
    REASON,
    REASONS,
    STATUSES,
)
from sim_core.simulator import (
    Results,
    legality,
    plain_python_s,
    simai_breakdown,
    simulate,
)
from sim_core.sources import source_hash, source_hashes
from sim_core.starting import Start, start_of
from sim_core.terms import SHARDINGS
from sim_core.timelines.spans import KINDS as SPAN_KINDS
from sim_core.timelines.spans import STREAMS, Spans
from sim_core.tracing import Events, Timeline, blocks_of, timeline, trace
from sim_core.units import (
    SWITCH,
    count,
    quantity,
    short,
)
from sim_core.workloads.check import Check, ImpliedModel
from sim_core.workloads.modelled import workload_from_model
from sim_core.workloads.plausibility import (
    HIGHEST_MFU,
    LOWEST_MFU,
    Plausibility,
    implied_model,
    plausibility,
)
from sim_core.workloads.readers.op_table import Repeat
from sim_core.workloads.reading import (
    SIMAI,
    TRACE,
    Facts,
    input_paths,
    kind_of,
    read_traces,
    read_workload,
    suggest_model,
)
from sim_core.workloads.summary import (
    Summary,
    Traffic,
    summarize,
)
from sim_core.workloads.traces.job import (
    Job,
    Rank,
)
from sim_core.workloads.traces.program import Played
from sim_core.workloads.traces.replay import (
    Replay,
    recorded_step,
    replay,
)
from sim_core.workloads.traces.statistics import (
    JobStatistics,
    statistics,
)
from sim_core.workloads.workload import (
    BasePlan,
    Workload,
)

__all__ = [
    "BOUNDS",
    "COMPILE_AFTER_S",
    "CHECKPOINTING",
    "EXPLANATIONS",
    "FIDELITIES",
    "FASTER",
    "FIRST_FAILURE",
    "GEMM_PHASES",
    "HARDWARE_KEYS",
    "HIGHEST_MFU",
    "LOWEST_MFU",
    "LARGEST",
    "MEMORY",
    "METRICS",
    "PARTS",
    "PLAIN_PYTHON",
    "ALTERNATIVES",
    "PLAN_DEFAULTS",
    "PLAN_FIELDS",
    "PlanField",
    "PRECISION_NAMES",
    "REASON",
    "REASONS",
    "RECOMPUTE_MODULES",
    "SCHEDULES",
    "SHARDINGS",
    "SIMAI",
    "SPLITS",
    "STATUSES",
    "SPAN_KINDS",
    "STEP",
    "STREAMS",
    "SWITCH",
    "Spans",
    "TRACE",
    "Timeline",
    "blocks_of",
    "timeline",
    "BasePlan",
    "Check",
    "Events",
    "Facts",
    "Group",
    "Shape",
    "shape_of",
    "FormatError",
    "Hardware",
    "Job",
    "JobStatistics",
    "Played",
    "Rank",
    "Repeat",
    "Replay",
    "HardwareTable",
    "ImpliedModel",
    "Model",
    "Parameters",
    "Plans",
    "Plausibility",
    "Results",
    "SimError",
    "SpecError",
    "Stack",
    "Start",
    "Summary",
    "Surface",
    "GemmSurface",
    "AttentionSurface",
    "Traffic",
    "Workload",
    "cache_dir",
    "calibrated",
    "read_calibrated",
    "checkpointing_codes",
    "ignored_columns",
    "collective_seconds",
    "compile_steps",
    "compile_tables",
    "compiling_alone",
    "count",
    "export_simai",
    "fabric_names",
    "hardware_table",
    "hardware_yaml",
    "is_compiled",
    "is_preset",
    "Bounds",
    "bounds",
    "coarse_bounds",
    "coarse_bounds_over",
    "legality",
    "model_document",
    "model_flops_per_token",
    "model_names",
    "model_yaml",
    "gemm_s",
    "attention_forward_s",
    "attention_backward_s",
    "load_kernels",
    "measured_kernels",
    "memory_basis",
    "precisions",
    "key_path",
    "located",
    "named",
    "nearest",
    "one_line",
    "parse_json",
    "parse_yaml",
    "read_document",
    "parameters",
    "parse_hardware",
    "parse_model",
    "plans",
    "plain_python_s",
    "plausibility",
    "preset_names",
    "quantity",
    "read_hardware",
    "implied_model",
    "read_stack",
    "read_model",
    "input_paths",
    "kind_of",
    "read_traces",
    "recorded_step",
    "statistics",
    "read_workload",
    "replay",
    "sends_in_background",
    "shown",
    "simai_breakdown",
    "sent_bytes",
    "simulate",
    "slice_plans",
    "short",
    "source_hash",
    "source_hashes",
    "suggest_model",
    "summarize",
    "stack_names",
    "start_of",
    "trace",
    "use_kernels",
    "whole_number",
    "workload_from_model",
]
