"""Who has a second opinion, by hand: each field of a plan, each of its words, each kind of layer; and the test to read.

Add here what is new together with the case that exercises it; `test_opinions.py` names what lacks one.
"""

from __future__ import annotations

PLANS = "tests/oracle/test_oracle.py::test_plans_that_differ_in_one_column_are_told_apart"
"""Whole steps of random plans; the values are those of `OTHERS` in cases.py."""
LAYERS = "tests/oracle/test_layer_time.py::test_parts_of_the_layers_are_those_written_out"
MESSAGES = "tests/oracle/test_layer_messages.py::test_every_layer_sends_what_its_papers_say"
UPDATES = "tests/oracle/test_updates.py::test_state_and_update_are_those_of_the_papers"
_MUON = "tests/sim_core/test_optimizers.py::test_muon_adds_the_work_and_the_state_of_the_busiest_rank"
_MODES = "tests/sim_core/test_optimizers.py::test_modes_do_what_newton_schulz_on_parts_does"
_SIMAI = "tests/sim_core/test_simai_model.py::test_every_branch_agrees_with_the_second_implementation"
_ZERO = "tests/sim_core/test_sharding.py::test_state_is_that_of_the_zero_paper"
_STREAMS = "tests/sim_core/test_sharding.py::test_passes_take_what_streams_and_buffers_take"
_SHARDED = "tests/sim_core/test_sharding.py::test_every_micro_batch_gathers_and_scatters_again"
_OFFLOAD = "tests/sim_core/test_offload.py"
_DISPATCH = "tests/sim_core/test_dispatcher.py"

OF_FIELDS: dict[str, str | dict[str, str]] = {
    **dict.fromkeys(("tp", "pp", "vpp", "ep", "all_gpus", "micro_batch", "ga", "layers", "hardware", "virtual_layers"), PLANS),
    **dict.fromkeys(("bucket_bytes", "schedule", "layer_split", "checkpointing", "checkpoint_layers"), PLANS),
    **dict.fromkeys(("overlap_tp", "overlap_ep", "overlap_pp", "overlap_grad", "overlap_param", "post_validation"), PLANS),
    **dict.fromkeys(("sequence", "experts", "microbatch_group_size", "gradient_precision", "expert_imbalance"), PLANS),
    **dict.fromkeys(("straggler_stage", "straggler_factor", "device_speed"), PLANS),
    "fidelity": {"event": PLANS, "simai": _SIMAI},
    **dict.fromkeys(("dp_overlap_ratio", "tp_overlap_ratio", "ep_overlap_ratio", "pp_overlap_ratio"), _SIMAI),
    **dict.fromkeys(("cp", "cp_a2a_size", "overlap_shared_experts"), LAYERS),
    "cp_comm_type": dict.fromkeys(("p2p", "all_gather", "a2a", "a2a+p2p"), LAYERS),
    "sharding": {"stack": PLANS, "none": _ZERO, "optimizer": _ZERO, "gradients": _ZERO, "parameters": _ZERO},
    "dp_shard": "tests/sim_core/test_sharding.py::test_replicas_sum_their_shards_once_a_step",
    "reshard_after_forward": "tests/sim_core/test_sharding.py::test_parameters_that_stay_are_gathered_once_a_micro_batch",
    "prefetch_layers": _STREAMS,
    "optimizer": {"adamw": UPDATES, "muon": _MUON, "sgd_momentum": UPDATES, "adafactor": UPDATES, "adam8bit": UPDATES},
    "muon_tp_mode": dict.fromkeys(("blockwise", "duplicated", "distributed"), _MODES),
    "muon_aligned": _MUON,
    "activation_offload": f"{_OFFLOAD}::test_a_layer_waits_for_copies_longer_than_its_passes",
    "offload_modules": f"{_OFFLOAD}::test_modules_send_their_inputs",
    "parameter_offload": f"{_OFFLOAD}::test_parameters_come_over_before_each_pass",
    **dict.fromkeys(("optimizer_offload", "overlap_offload"), f"{_OFFLOAD}::test_the_host_updates_its_part"),
    "precision": {
        "bf16": LAYERS,
        **dict.fromkeys(("fp16", "fp8_delayed", "fp8_tensorwise", "fp8_blockwise", "mxfp8", "nvfp4"), MESSAGES),
    },
    "dispatcher": {
        "alltoall": LAYERS,
        "flex": f"{_DISPATCH}::test_copies_that_leave_a_node_are_those_of_random_routing",
        "hierarchical": f"{_DISPATCH}::test_two_stages_by_counting",
    },
}
"""Of each column of a plan the test; of one with words, of each of them, but for schedules (KNOWN_SCHEDULES in cases.py)."""

OF_LAYERS = {
    **dict.fromkeys(("embedding", "layer", "head", "mtp"), MESSAGES),
    **dict.fromkeys(("attention", "recurrent", "compressed", "mlp", "none"), MESSAGES),
    **dict.fromkeys(("mamba2", "gated_delta", "kda"), MESSAGES),
}
"""Of each kind of unit, mixer of tokens, mixer of channels, and scan."""

OF_SECTIONS = {
    "mla": MESSAGES,
    "experts": MESSAGES,
    "window": MESSAGES,
    "indexer": MESSAGES,
    "compressed": MESSAGES,
    "recurrent": MESSAGES,
    "lora": "tests/oracle/test_layer_messages.py::test_adapters_capacities_and_queries_change_what_is_sent",
    "packing": "tests/sim_core/test_packing.py::test_attention_works_on_the_squares_of_texts",
}
"""Of each section of a model's numbers."""
