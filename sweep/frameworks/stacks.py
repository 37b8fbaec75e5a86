"""What is known of the stacks that pages describe: axes that they lack, their words, the best for a device, the nearest."""

from typing import NamedTuple

from sim_core.documents import Words
from sweep.frameworks import deepspeed, megatron, nanotron, nemo, olmo_core, torchtitan
from sweep.frameworks.megatron_sizes import TP_OVERLAP

HAI_LLM, PRIMUS, MAXTEXT, NEMO_24, LLM_FOUNDRY, FMS = "hai-llm", "primus", "maxtext-tpu", "nemo-24", "llm-foundry", "fms-fsdp"
AMD, TPU, NVIDIA = "MI", "TPU", ("A", "B", "GB", "H", "L", "V")
"""Beginnings of the names of devices."""


class Page(NamedTuple):
    """A stack. `lacks`: axes without a launch option. `not_varied`: axes that a first space does without, as the stack lacks
    them, has them by a schedule, or by a library of its own that nobody has timed (user buffers, DeepEP). `overlap_tp`: what it
    calls collectives of tp beside GEMMs. `of_megatron`: Megatron-LM runs below it. `past`: of 2021 to early 2025, which nobody
    begins a job with. `devices`: beginnings of the names of those that it is for; empty: of all GPUs."""

    lacks: Words = ()
    not_varied: Words = ()
    overlap_tp: str = f"{TP_OVERLAP.flag} of Megatron-LM"
    of_megatron: bool = False
    past: bool = False
    devices: Words = ()


_DATA_PARALLEL = ("tp", "pp", "vpp", "cp", "ep", "overlap_tp", "overlap_ep", "dispatcher", "layer_split", "schedule")
PAGES = {
    megatron.PAGE: Page(of_megatron=True),
    nemo.PAGE: Page(of_megatron=True, devices=NVIDIA),
    NEMO_24: Page(of_megatron=True, past=True, devices=NVIDIA),
    megatron.PAGE_OF_2022: Page(lacks=("overlap_tp", "overlap_ep", "dispatcher"), past=True),
    deepspeed.PAGE: Page(lacks=("overlap_tp", "overlap_ep", "vpp", "dispatcher"), past=True),
    LLM_FOUNDRY: Page(past=True),
    deepspeed.TRAINER_PAGE: Page(lacks=_DATA_PARALLEL),
    FMS: Page(lacks=_DATA_PARALLEL),
    nanotron.PAGE: Page(lacks=("vpp", "overlap_ep", "dispatcher"), overlap_tp=nanotron.ASYNC_TP.name),
    torchtitan.PAGE: Page(overlap_tp="async tensor parallelism"),
    PRIMUS: Page(not_varied=("overlap_tp", "dispatcher"), of_megatron=True, devices=(AMD,)),
    # DualPipe hides all-to-alls (arXiv 2412.19437, section 3.2.1)
    HAI_LLM: Page(not_varied=("overlap_ep",), overlap_tp="GEMMs beside gathers and scatters (arXiv 2401.02954, section 2.4)"),
    MAXTEXT: Page(not_varied=("overlap_tp", "dispatcher", "overlap_ep", "pp", "vpp", "layer_split"), devices=(TPU,)),
}
WITHOUT_PAGE_AS = " as "
"""In the name of a stack, between a framework without a page and the page that stands for it."""
WITHOUT_PAGE = {deepspeed.TRAINER_NAME: _DATA_PARALLEL, deepspeed.NAME: _DATA_PARALLEL, olmo_core.NAME: olmo_core.LACKS}
"""Frameworks without a page, whose jobs have an empty stack, and axes that they lack: of DeepSpeed ZeRO alone, unless the
training code itself is written for more."""


def page_of(stack: str) -> Page:
    """What is known of a stack."""
    return PAGES.get(stack, Page())


def may_run(stack: str, device: str) -> bool:
    """Whether a job on a device, whose stack nobody names, may run this one: none of the past, none that only shares data."""
    page = page_of(stack)
    return not (page.past or "tp" in page.lacks) and (
        device.startswith(page.devices) if page.devices else not device.startswith(TPU)
    )


def stack_on(device: str, *, is_torus: bool) -> tuple[str, str]:
    """The stack that a device alone tells, and why it; none of devices on which many run."""
    if is_torus:
        return MAXTEXT, "MaxText, with Google's published runs on TPUs"
    if device.startswith(AMD):
        return PRIMUS, "AMD's Megatron-LM on ROCm; few of its runs are published"
    return "", ""


def nearest_stack(sharding: str, *, of_2022: bool = False) -> str:
    """The stack with which a framework that has no page is simulated, by what is known of it.

    `sharding`: what ranks share, empty where it is not known; who shares parameters gathers them layer by layer, as FSDP does.
    `of_2022`: it trains what was trained before 2023 (fp16, no rotary positions, no gated MLP, no experts), with the kernels of
    that time. All others are taken for Megatron-Core.
    """
    if sharding == "parameters":
        return torchtitan.PAGE
    return megatron.PAGE_OF_2022 if of_2022 else megatron.PAGE


def assumed(framework: str, stack: str) -> str:
    """The name of a stack that stands for a framework without a page."""
    return framework + WITHOUT_PAGE_AS + stack
