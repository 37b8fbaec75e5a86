"""`Stack`: what a training framework makes of a model: its kernels, what it overlaps, what it keeps in memory."""

from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, ValidationError

from sim_core.documents import read_document
from sim_core.errors import SpecError, nearest, shown
from sim_core.models.activations import Kept
from sim_core.models.description import Checked, Flag
from sim_core.models.traffic import FUSED_ACCUMULATION

STACK_DIR: Final = Path(__file__).parent / "stacks"
Number = Annotated[float, Field(ge=0)]
Sharding = Literal["none", "optimizer", "gradients", "parameters"]


class Kernels(NamedTuple):
    """Choices that change the operators of a model. Their speed is not described here."""

    flash_attention: bool = True  # else scores, softmax and context are kernels of their own
    fused_loss: bool = True
    accumulation_bytes: float = FUSED_ACCUMULATION  # per weight and micro-batch


class Stack(Checked):
    """Seconds, bytes, or parts of 1, the same for every model and device."""

    name: str
    source: str
    flash_attention: Flag
    attention_scale: Number | dict[str, Number]  # time of core attention over that of the measured kernels; by their device
    fused_loss: Flag
    logit_bytes: Number  # kept per logit from head to backward
    expert_outputs_kept: Flag  # false: probabilities of routed copies are applied before the experts' second GEMM
    activation_input_bytes: Number  # kept of an element that enters the activation of an MLP
    attention_output_bytes: Number | None = None  # of core attention's output; else 16 bits and the projection's narrower copy
    fp8: Flag  # linear layers in 8 and 4 bits (Transformer Engine), parameters gathered in 8 where the recipe can
    accumulation_bytes: Number  # per weight and micro-batch, gradient accumulation; in a kernel of its own 6, of fp32 10
    gradient_bytes: Literal[2, 4]  # of an element that is reduced
    sharding: Sharding  # unless the plan says otherwise
    sharding_in_pipeline: Sharding | None = None  # the same where pp > 1, if it is another
    weight_bytes: Literal[0, 2]  # of 16-bit weights that a rank keeps beside the fp32 ones
    adam_bytes: Number  # of fp32 weights and two moments that a rank keeps per weight
    # traffic per weight of a rank's share and step: fused Adam, sharded, 36 (fp32 weight, two moments, gradient in and out);
    # FSDP's 30; not fused 54 (unscale, look for infinities, norm, clip, Adam, copy)
    optimizer_bytes: Number
    experts_with_tp: Flag  # experts are divided by tensor parallelism, too
    hides_backward_tp: Flag  # collectives of the backward run beside GEMMs of the same operator
    contention: Number  # part of a hidden collective that its GEMM is slower by
    scatters_sends: Flag  # without sequence parallelism, too, a rank sends 1/tp to the next stage, which gathers it
    dp_contention: Number  # part of hidden gradients and parameters that the compute beside them is slower by
    jitter: Number  # compute is slower by this for each doubling of the GPUs beyond 8: a step waits for its slowest rank
    overlapped_tp_exposed: Number  # part of tensor-parallel collectives that `overlap_tp` leaves exposed
    launch_forward: Number  # seconds of CPU per layer: a layer never takes less
    launch_backward: Number
    step: Number  # seconds per step besides all else
    reserved: Number  # bytes of a device that no tensor can have: context, communicators
    fragmentation: Number  # allocated over used memory

    def attention_on(self, device: str) -> float:
        """Time of core attention over that of the kernels measured on `device`; 1 where the stack does not say."""
        scale = self.attention_scale
        return scale.get(device, 1.0) if isinstance(scale, dict) else scale

    @property
    def kept(self) -> Kept:
        """What it keeps of some activations."""
        return Kept(self.logit_bytes, self.expert_outputs_kept, self.activation_input_bytes, self.attention_output_bytes)

    @property
    def kernels(self) -> Kernels:
        """Its choices of kernels."""
        return Kernels(self.flash_attention, self.fused_loss, self.accumulation_bytes)


@cache
def stack_names() -> tuple[str, ...]:
    """Names of the stacks that ship with sim_core."""
    return tuple(sorted(path.stem for path in STACK_DIR.glob("*.yaml")))


@cache
def read_stack(name: str) -> Stack:
    """A stack by name. Raises SpecError."""
    if name not in stack_names():
        raise SpecError(f"unknown stack {shown(name)}, {nearest(name, stack_names())}")
    path = STACK_DIR / f"{name}.yaml"
    try:
        return Stack.model_validate(read_document(path, "name, source")[0])
    except ValidationError as error:
        raise SpecError(f"{path}: {error.errors()[0]['msg']}") from None
