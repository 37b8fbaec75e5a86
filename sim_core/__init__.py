"""Files in, numbers out: workloads, hardware and parallel plans, simulated by a compiled event engine.

This module is the public interface of the package, which does not know sweeps, clusters or result files. Beside it, the
modules of `PUBLIC` are for others as they stand.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final
from warnings import warn

from sim_core.arrays import Bools as Bools, Floats as Floats, Ints as Ints
from sim_core.bounding import (
    FASTER as FASTER,
    Bounds as Bounds,
    bounds as bounds,
    coarse_bounds as coarse_bounds,
    coarse_bounds_over as coarse_bounds_over,
    ignored_columns as ignored_columns,
)
from sim_core.costing.calibration import calibrated as calibrated, read_calibrated as read_calibrated
from sim_core.costing.one_collective import collective_seconds as collective_seconds
from sim_core.costing.peak import memory_basis as memory_basis
from sim_core.costing.running import placed_by_cost as placed_by_cost
from sim_core.costing.traffic import sent_bytes as sent_bytes
from sim_core.describing import Group as Group, Shape as Shape, shape_of as shape_of
from sim_core.engine.schedules import ROWS, SCHEDULES as SCHEDULES, schedules_to_try as schedules_to_try
from sim_core.errors import (
    FormatError as FormatError,
    SimError as SimError,
    SpecError as SpecError,
    named as named,
    nearest as nearest,
    one_line as one_line,
    shown as shown,
)
from sim_core.exporting import export_simai as export_simai
from sim_core.hardware.description import (
    KEYS,
    Hardware as Hardware,
    fabric_names as fabric_names,
    hardware_yaml as hardware_yaml,
    is_preset as is_preset,
    measured_devices as measured_devices,
    parse_hardware as parse_hardware,
    preset_names as preset_names,
    read_hardware as read_hardware,
)
from sim_core.hardware.table import HardwareTable as HardwareTable, hardware_table as hardware_table
from sim_core.metrics import (
    MEMORY as MEMORY,
    MEMORY_ROWS as MEMORY_ROWS,
    METRIC_ROWS as METRIC_ROWS,
    METRICS as METRICS,
    PARTS as PARTS,
)
from sim_core.models.description import (
    Model as Model,
    model_document as model_document,
    model_yaml as model_yaml,
    parse_model as parse_model,
)
from sim_core.models.facts import Fact as Fact
from sim_core.models.readers import megatron_arguments as megatron_arguments
from sim_core.models.readers.argument import (
    OF_NUMBER as OF_NUMBER,
    OF_SWITCH as OF_SWITCH,
    OFF as OFF,
    Argument as Argument,
    Dump as Dump,
    Rules as Rules,
    arguments_in as arguments_in,
    flag_of as flag_of,
    flags_of as flags_of,
    whole_of as whole_of,
)
from sim_core.models.readers.hugging_face import read_config as read_config
from sim_core.models.readers.megatron import says_model as says_model
from sim_core.models.readers.megatron_flags import (
    Flags as Flags,
    Given as Given,
    flags_of_document as flags_of_document,
    flags_of_text as flags_of_text,
)
from sim_core.models.reading import (
    model_names as model_names,
    model_of_dump as model_of_dump,
    model_of_flags as model_of_flags,
    read_model as read_model,
)
from sim_core.models.recompute import RECOMPUTE_MODULES as RECOMPUTE_MODULES
from sim_core.models.stack import (
    STACK_FACTS as STACK_FACTS,
    Stack as Stack,
    is_page as is_page,
    read_stack as read_stack,
    stack_names as stack_names,
    stack_yaml as stack_yaml,
)
from sim_core.models.weights import (
    Parameters as Parameters,
    model_flops_per_token as model_flops_per_token,
    parameters as parameters,
)
from sim_core.planning.building import plans as plans, sends_in_background as sends_in_background
from sim_core.planning.columns import (
    BALANCED_COST as BALANCED_COST,
    CHECKPOINTING as CHECKPOINTING,
    FIDELITIES as FIDELITIES,
    Plans as Plans,
    slice_plans as slice_plans,
)
from sim_core.planning.fields import ALTERNATIVES as ALTERNATIVES, DEFAULTS, FIELDS, FOLLOWING as FOLLOWING, Field
from sim_core.planning.labels import checkpointing_codes as checkpointing_codes
from sim_core.planning.legality import (
    EXPLANATIONS as EXPLANATIONS,
    FIRST_FAILURE as FIRST_FAILURE,
    REASON as REASON,
    REASONS as REASONS,
    STATUSES as STATUSES,
)
from sim_core.simulator import (
    Checked as Checked,
    Hosts as Hosts,
    Results as Results,
    legality as legality,
    simai_breakdown as simai_breakdown,
    simulate as simulate,
)
from sim_core.starting import Start as Start, start_of as start_of
from sim_core.timelines.spans import KINDS, STREAMS as STREAMS, Spans as Spans
from sim_core.tracing import (
    Events as Events,
    Timeline as Timeline,
    blocks_of as blocks_of,
    timeline as timeline,
    trace as trace,
)
from sim_core.units import SWITCH as SWITCH, count as count, plural as plural, quantity as quantity, short as short
from sim_core.workloads.check import Check as Check, ImpliedModel as ImpliedModel
from sim_core.workloads.facts import Facts as Facts
from sim_core.workloads.modelled import workload_from_model as workload_from_model
from sim_core.workloads.op_table.text import looks_like_op_table as looks_like_op_table
from sim_core.workloads.plausibility import (
    HIGHEST_MFU as HIGHEST_MFU,
    LOWEST_MFU as LOWEST_MFU,
    Plausibility as Plausibility,
    implied_model as implied_model,
    plausibility as plausibility,
)
from sim_core.workloads.reading import (
    SIMAI as SIMAI,
    STAGES as STAGES,
    TRACE as TRACE,
    kind_of as kind_of,
    read_traces as read_traces,
    read_workload as read_workload,
    suggest_model as suggest_model,
)
from sim_core.workloads.stages.text import (
    StageDurations as StageDurations,
    durations_of as durations_of,
    looks_like_stages as looks_like_stages,
    stage_document as stage_document,
)
from sim_core.workloads.summary import Summary as Summary, Traffic as Traffic, summarize as summarize
from sim_core.workloads.traces.files import input_paths as input_paths
from sim_core.workloads.traces.job import Job as Job, Rank as Rank
from sim_core.workloads.traces.meeting import Played as Played
from sim_core.workloads.traces.replay import (
    JobStatistics as JobStatistics,
    Replay as Replay,
    recorded_step as recorded_step,
    replay as replay,
    statistics as statistics,
)
from sim_core.workloads.traces.text import looks_like_trace as looks_like_trace
from sim_core.workloads.workload import BasePlan as BasePlan, Framework as Framework, Workload as Workload

HARDWARE_KEYS: Final = KEYS
PLAN_DEFAULTS: Final = DEFAULTS
PLAN_FIELDS: Final = FIELDS
PlanField = Field
SCHEDULE_ROWS: Final = ROWS
SPAN_KINDS: Final = KINDS

PUBLIC: Final = (
    "compiling",
    "documents",
    "hardware.kernels.attention",
    "hardware.kernels.device",
    "hardware.kernels.gemm",
    "hardware.surface",
    "limits",
    "masking",
    "models.features",
    "models.releases",
    "places",
    "records",
    "workloads.facts",
)
"""Modules of their own that others may import; until 0.2 this one named what they have."""

if not TYPE_CHECKING:  # else no misspelt name would be one for a type checker

    def __getattr__(name: str) -> object:
        for module in PUBLIC:
            found = vars(import_module(f"sim_core.{module}")).get(name, warn)
            if not name.startswith("_") and not isinstance(found, ModuleType) and found is not warn:
                now = f"sim_core.{module}.{name}"
                warn(f"sim_core.{name} is now {now}; sim_core.{name} will be refused from 0.4 on", FutureWarning, stacklevel=2)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
