"""The public names of sim_core and where they are: for type checkers, and for `__init__`, which imports them on demand."""

from sim_core.arrays import Bools, Floats, Ints
from sim_core.bounding import FASTER, Bounds, bounds, coarse_bounds, coarse_bounds_over, ignored_columns, work_bounds
from sim_core.costing.calibration import calibrated, read_calibrated
from sim_core.costing.one_collective import collective_seconds
from sim_core.costing.peak import ASSUMED_STACK, memory_basis
from sim_core.costing.running import placed_by_cost
from sim_core.describing import Group, Shape, shape_of
from sim_core.documents import Fields, Values, Words
from sim_core.engine.schedules import ROWS as SCHEDULE_ROWS, SCHEDULES, schedules_to_try
from sim_core.errors import FormatError, SimError, SpecError, named, nearest, one_line, shown
from sim_core.exporting import export_simai
from sim_core.hardware.description import (
    FEW_SETS,
    KEYS as HARDWARE_KEYS,
    Hardware,
    Told,
    fabric_names,
    hardware_yaml,
    is_preset,
    measured_devices,
    measured_of,
    parse_hardware,
    preset_names,
    read_hardware,
)
from sim_core.hardware.table import HardwareTable, hardware_table
from sim_core.metrics import MEMORY, MEMORY_ROWS, METRIC_ROWS, METRICS, PARTS
from sim_core.models.description import Model, model_document, model_yaml, parse_model
from sim_core.models.facts import Fact
from sim_core.models.readers import megatron_arguments
from sim_core.models.readers.argument import (
    OF_NUMBER,
    OF_SWITCH,
    OFF,
    Argument,
    Dump,
    Rules,
    arguments_in,
    flag_of,
    flags_of,
    whole_of,
)
from sim_core.models.readers.hugging_face import ASSUMED, read_config
from sim_core.models.readers.megatron import says_model
from sim_core.models.readers.megatron_flags import Flags, Given, flags_of_document, flags_of_text
from sim_core.models.reading import model_names, model_of_dump, model_of_flags, read_model
from sim_core.models.recompute import OFFLOAD_MODULES, RECOMPUTE_MODULES
from sim_core.models.stack import STACK_FACTS, Stack, is_page, read_stack, stack_names, stack_yaml
from sim_core.models.weights import Parameters, model_flops_per_token, parameters
from sim_core.planning.building import plans, sends_in_background
from sim_core.planning.columns import BALANCED_COST, CHECKPOINTING, FIDELITIES, Plans, slice_plans
from sim_core.planning.fields import (
    ALTERNATIVES,
    DEFAULTS as PLAN_DEFAULTS,
    FIELDS as PLAN_FIELDS,
    FOLLOWING,
    Field as PlanField,
)
from sim_core.planning.labels import checkpointing_codes
from sim_core.planning.legality import EXPLANATIONS, FIRST_FAILURE, REASON, REASONS, STATUSES, check as check_rules
from sim_core.simulator import Checked, Hosts, Results, legality, simai_breakdown, simulate
from sim_core.starting import Start, start_of
from sim_core.timelines.spans import KINDS as SPAN_KINDS, STREAMS, Spans
from sim_core.tracing import Events, Timeline, blocks_of, timeline, trace
from sim_core.units import SWITCH, count, plural, quantity, short
from sim_core.workloads.check import Check, ImpliedModel
from sim_core.workloads.facts import Facts
from sim_core.workloads.modelled import workload_from_model
from sim_core.workloads.op_table.text import looks_like_op_table
from sim_core.workloads.plausibility import HIGHEST_MFU, LOWEST_MFU, Plausibility, implied_model, plausibility
from sim_core.workloads.reading import SIMAI, STAGES, TRACE, kind_of, read_traces, read_workload
from sim_core.workloads.stages.text import StageDurations, durations_of, looks_like_stages, stage_document
from sim_core.workloads.summary import Summary, Traffic, summarize
from sim_core.workloads.traces.files import input_paths
from sim_core.workloads.traces.job import Job, Rank
from sim_core.workloads.traces.line import looks_like_trace
from sim_core.workloads.traces.meeting import Played
from sim_core.workloads.traces.replay import JobStatistics, Replay, recorded_step, replay, statistics
from sim_core.workloads.workload import BasePlan, Framework, Workload

PUBLIC: tuple[str, ...]

__all__ = [
    "ALTERNATIVES",
    "ASSUMED",
    "Argument",
    "BALANCED_COST",
    "BasePlan",
    "Bools",
    "Bounds",
    "CHECKPOINTING",
    "Check",
    "Checked",
    "Dump",
    "EXPLANATIONS",
    "Events",
    "FASTER",
    "FEW_SETS",
    "FIDELITIES",
    "FIRST_FAILURE",
    "FOLLOWING",
    "Fact",
    "Facts",
    "Fields",
    "Flags",
    "Floats",
    "FormatError",
    "Framework",
    "Given",
    "Group",
    "ASSUMED_STACK",
    "HARDWARE_KEYS",
    "HIGHEST_MFU",
    "Hardware",
    "HardwareTable",
    "Hosts",
    "ImpliedModel",
    "Ints",
    "Job",
    "JobStatistics",
    "LOWEST_MFU",
    "MEMORY",
    "MEMORY_ROWS",
    "METRICS",
    "METRIC_ROWS",
    "Model",
    "OFF",
    "OFFLOAD_MODULES",
    "OF_NUMBER",
    "OF_SWITCH",
    "PARTS",
    "PLAN_DEFAULTS",
    "PLAN_FIELDS",
    "PUBLIC",
    "Parameters",
    "PlanField",
    "Plans",
    "Plausibility",
    "Played",
    "REASON",
    "REASONS",
    "RECOMPUTE_MODULES",
    "Rank",
    "Replay",
    "Results",
    "Rules",
    "SCHEDULES",
    "SCHEDULE_ROWS",
    "SIMAI",
    "SPAN_KINDS",
    "STACK_FACTS",
    "STAGES",
    "STATUSES",
    "STREAMS",
    "SWITCH",
    "Shape",
    "SimError",
    "Spans",
    "SpecError",
    "Stack",
    "StageDurations",
    "Start",
    "Summary",
    "TRACE",
    "Timeline",
    "Told",
    "Traffic",
    "Values",
    "Words",
    "Workload",
    "arguments_in",
    "blocks_of",
    "bounds",
    "calibrated",
    "check_rules",
    "checkpointing_codes",
    "coarse_bounds",
    "coarse_bounds_over",
    "collective_seconds",
    "count",
    "durations_of",
    "export_simai",
    "fabric_names",
    "flag_of",
    "flags_of",
    "flags_of_document",
    "flags_of_text",
    "hardware_table",
    "hardware_yaml",
    "ignored_columns",
    "implied_model",
    "input_paths",
    "is_page",
    "is_preset",
    "kind_of",
    "legality",
    "looks_like_op_table",
    "looks_like_stages",
    "looks_like_trace",
    "measured_devices",
    "measured_of",
    "megatron_arguments",
    "memory_basis",
    "model_document",
    "model_flops_per_token",
    "model_names",
    "model_of_dump",
    "model_of_flags",
    "model_yaml",
    "named",
    "nearest",
    "one_line",
    "parameters",
    "parse_hardware",
    "parse_model",
    "placed_by_cost",
    "plans",
    "plausibility",
    "plural",
    "preset_names",
    "quantity",
    "read_calibrated",
    "read_config",
    "read_hardware",
    "read_model",
    "read_stack",
    "read_traces",
    "read_workload",
    "recorded_step",
    "replay",
    "says_model",
    "schedules_to_try",
    "sends_in_background",
    "shape_of",
    "short",
    "shown",
    "simai_breakdown",
    "simulate",
    "slice_plans",
    "stack_names",
    "stack_yaml",
    "stage_document",
    "start_of",
    "statistics",
    "summarize",
    "timeline",
    "trace",
    "whole_of",
    "work_bounds",
    "workload_from_model",
]
