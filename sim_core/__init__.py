"""Files in, numbers out: workloads, hardware and parallel plans, simulated by a compiled event engine.

This module is the public interface of the package, which does not know sweeps, clusters or result files.
"""

from typing import Final

from sim_core.arrays import Bools as Bools
from sim_core.arrays import Floats as Floats
from sim_core.arrays import Ints as Ints
from sim_core.bounding import FASTER as FASTER
from sim_core.bounding import Bounds as Bounds
from sim_core.bounding import bounds as bounds
from sim_core.bounding import coarse_bounds as coarse_bounds
from sim_core.bounding import coarse_bounds_over as coarse_bounds_over
from sim_core.bounding import ignored_columns as ignored_columns
from sim_core.compiling import compile_orders as compile_orders
from sim_core.compiling import compile_steps as compile_steps
from sim_core.compiling import compile_tables as compile_tables
from sim_core.costing.calibration import calibrated as calibrated
from sim_core.costing.calibration import read_calibrated as read_calibrated
from sim_core.costing.one_collective import collective_seconds as collective_seconds
from sim_core.costing.peak import memory_basis as memory_basis
from sim_core.costing.traffic import sent_bytes as sent_bytes
from sim_core.describing import Group as Group
from sim_core.describing import Shape as Shape
from sim_core.describing import shape_of as shape_of
from sim_core.documents import key_path as key_path
from sim_core.documents import located as located
from sim_core.documents import parse_json as parse_json
from sim_core.documents import parse_yaml as parse_yaml
from sim_core.documents import read_document as read_document
from sim_core.engine.schedules import ROWS
from sim_core.engine.schedules import SCHEDULES as SCHEDULES
from sim_core.engine.schedules import schedules_to_try as schedules_to_try
from sim_core.errors import FormatError as FormatError
from sim_core.errors import SimError as SimError
from sim_core.errors import SpecError as SpecError
from sim_core.errors import named as named
from sim_core.errors import nearest as nearest
from sim_core.errors import one_line as one_line
from sim_core.errors import shown as shown
from sim_core.exporting import export_simai as export_simai
from sim_core.hardware.description import KEYS
from sim_core.hardware.description import Hardware as Hardware
from sim_core.hardware.description import fabric_names as fabric_names
from sim_core.hardware.description import hardware_yaml as hardware_yaml
from sim_core.hardware.description import is_preset as is_preset
from sim_core.hardware.description import parse_hardware as parse_hardware
from sim_core.hardware.description import preset_names as preset_names
from sim_core.hardware.description import read_hardware as read_hardware
from sim_core.hardware.kernels.attention import attention_backward_s as attention_backward_s
from sim_core.hardware.kernels.attention import attention_forward_s as attention_forward_s
from sim_core.hardware.kernels.device import load_kernels as load_kernels
from sim_core.hardware.kernels.device import measured_kernels as measured_kernels
from sim_core.hardware.kernels.device import precisions as precisions
from sim_core.hardware.kernels.gemm import PHASES
from sim_core.hardware.kernels.gemm import gemm_of_device_s as gemm_of_device_s
from sim_core.hardware.kernels.gemm import gemm_s as gemm_s
from sim_core.hardware.surface import AttentionSurface as AttentionSurface
from sim_core.hardware.surface import GemmSurface as GemmSurface
from sim_core.hardware.surface import Surface as Surface
from sim_core.hardware.table import HardwareTable as HardwareTable
from sim_core.hardware.table import hardware_table as hardware_table
from sim_core.jit import BOUNDS as BOUNDS
from sim_core.jit import COMPILE_AFTER_S as COMPILE_AFTER_S
from sim_core.jit import PLAIN_PYTHON as PLAIN_PYTHON
from sim_core.jit import STEP as STEP
from sim_core.jit import cache_dir as cache_dir
from sim_core.jit import compiling_alone as compiling_alone
from sim_core.jit import is_compiled as is_compiled
from sim_core.jit import use_kernels as use_kernels
from sim_core.limits import LARGEST as LARGEST
from sim_core.limits import whole_number as whole_number
from sim_core.masking import masked as masked
from sim_core.masking import without_secrets as without_secrets
from sim_core.metrics import MEMORY as MEMORY
from sim_core.metrics import MEMORY_ROWS as MEMORY_ROWS
from sim_core.metrics import METRIC_ROWS as METRIC_ROWS
from sim_core.metrics import METRICS as METRICS
from sim_core.metrics import PARTS as PARTS
from sim_core.models.description import Model as Model
from sim_core.models.description import model_document as model_document
from sim_core.models.description import model_yaml as model_yaml
from sim_core.models.description import parse_model as parse_model
from sim_core.models.facts import Fact as Fact
from sim_core.models.features import FEATURES as FEATURES
from sim_core.models.features import Recipe as Recipe
from sim_core.models.features import dispatcher_named as dispatcher_named
from sim_core.models.features import feature_aliases as feature_aliases
from sim_core.models.features import read_features as read_features
from sim_core.models.features import split_features as split_features
from sim_core.models.features import with_capacity as with_capacity
from sim_core.models.readers.hugging_face import read_config as read_config
from sim_core.models.readers.megatron import says_model as says_model
from sim_core.models.readers.megatron_flags import Flags as Flags
from sim_core.models.readers.megatron_flags import Given as Given
from sim_core.models.readers.megatron_flags import flags_of_document as flags_of_document
from sim_core.models.readers.megatron_flags import flags_of_text as flags_of_text
from sim_core.models.reading import model_names as model_names
from sim_core.models.reading import model_of_dump as model_of_dump
from sim_core.models.reading import model_of_flags as model_of_flags
from sim_core.models.reading import read_model as read_model
from sim_core.models.recompute import RECOMPUTE_MODULES as RECOMPUTE_MODULES
from sim_core.models.releases import Defaults as Defaults
from sim_core.models.releases import last_release as last_release
from sim_core.models.releases import release_defaults as release_defaults
from sim_core.models.releases import releases_of as releases_of
from sim_core.models.stack import STACK_FACTS as STACK_FACTS
from sim_core.models.stack import Stack as Stack
from sim_core.models.stack import is_page as is_page
from sim_core.models.stack import read_stack as read_stack
from sim_core.models.stack import stack_names as stack_names
from sim_core.models.stack import stack_yaml as stack_yaml
from sim_core.models.weights import Parameters as Parameters
from sim_core.models.weights import model_flops_per_token as model_flops_per_token
from sim_core.models.weights import parameters as parameters
from sim_core.places import lock_file as lock_file
from sim_core.planning.building import plans as plans
from sim_core.planning.building import sends_in_background as sends_in_background
from sim_core.planning.columns import BALANCED_COST as BALANCED_COST
from sim_core.planning.columns import CHECKPOINTING as CHECKPOINTING
from sim_core.planning.columns import FIDELITIES as FIDELITIES
from sim_core.planning.columns import Plans as Plans
from sim_core.planning.columns import slice_plans as slice_plans
from sim_core.planning.fields import ALTERNATIVES as ALTERNATIVES
from sim_core.planning.fields import DEFAULTS, FIELDS, Field
from sim_core.planning.fields import FOLLOWING as FOLLOWING
from sim_core.planning.labels import checkpointing_codes as checkpointing_codes
from sim_core.planning.legality import EXPLANATIONS as EXPLANATIONS
from sim_core.planning.legality import FIRST_FAILURE as FIRST_FAILURE
from sim_core.planning.legality import REASON as REASON
from sim_core.planning.legality import REASONS as REASONS
from sim_core.planning.legality import STATUSES as STATUSES
from sim_core.records import Record as Record
from sim_core.simulator import Results as Results
from sim_core.simulator import legality as legality
from sim_core.simulator import plain_python_s as plain_python_s
from sim_core.simulator import simai_breakdown as simai_breakdown
from sim_core.simulator import simulate as simulate
from sim_core.sources import source_hash as source_hash
from sim_core.sources import source_hashes as source_hashes
from sim_core.starting import Start as Start
from sim_core.starting import start_of as start_of
from sim_core.timelines.spans import KINDS
from sim_core.timelines.spans import STREAMS as STREAMS
from sim_core.timelines.spans import Spans as Spans
from sim_core.tracing import Events as Events
from sim_core.tracing import Timeline as Timeline
from sim_core.tracing import blocks_of as blocks_of
from sim_core.tracing import timeline as timeline
from sim_core.tracing import trace as trace
from sim_core.units import SWITCH as SWITCH
from sim_core.units import count as count
from sim_core.units import quantity as quantity
from sim_core.units import short as short
from sim_core.workloads.check import Check as Check
from sim_core.workloads.check import ImpliedModel as ImpliedModel
from sim_core.workloads.modelled import workload_from_model as workload_from_model
from sim_core.workloads.plausibility import HIGHEST_MFU as HIGHEST_MFU
from sim_core.workloads.plausibility import LOWEST_MFU as LOWEST_MFU
from sim_core.workloads.plausibility import Plausibility as Plausibility
from sim_core.workloads.plausibility import implied_model as implied_model
from sim_core.workloads.plausibility import plausibility as plausibility
from sim_core.workloads.readers.op_table import Repeat as Repeat
from sim_core.workloads.readers.op_table_text import looks_like_op_table as looks_like_op_table
from sim_core.workloads.readers.trace_text import looks_like_trace as looks_like_trace
from sim_core.workloads.reading import SIMAI as SIMAI
from sim_core.workloads.reading import STAGES as STAGES
from sim_core.workloads.reading import TRACE as TRACE
from sim_core.workloads.reading import Facts as Facts
from sim_core.workloads.reading import input_paths as input_paths
from sim_core.workloads.reading import kind_of as kind_of
from sim_core.workloads.reading import read_traces as read_traces
from sim_core.workloads.reading import read_workload as read_workload
from sim_core.workloads.reading import suggest_model as suggest_model
from sim_core.workloads.summary import Summary as Summary
from sim_core.workloads.summary import Traffic as Traffic
from sim_core.workloads.summary import summarize as summarize
from sim_core.workloads.traces.job import Job as Job
from sim_core.workloads.traces.job import Rank as Rank
from sim_core.workloads.traces.meeting import Played as Played
from sim_core.workloads.traces.replay import JobStatistics as JobStatistics
from sim_core.workloads.traces.replay import Replay as Replay
from sim_core.workloads.traces.replay import recorded_step as recorded_step
from sim_core.workloads.traces.replay import replay as replay
from sim_core.workloads.traces.replay import statistics as statistics
from sim_core.workloads.workload import BasePlan as BasePlan
from sim_core.workloads.workload import Workload as Workload

GEMM_PHASES: Final = PHASES
HARDWARE_KEYS: Final = KEYS
PLAN_DEFAULTS: Final = DEFAULTS
PLAN_FIELDS: Final = FIELDS
PlanField = Field
SCHEDULE_ROWS: Final = ROWS
SPAN_KINDS: Final = KINDS
