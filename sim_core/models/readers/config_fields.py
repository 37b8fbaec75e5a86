"""Fields of a `config.json`, taken one by one, so that a field that nobody takes is found."""

from collections.abc import Iterable, Mapping
from typing import Any

from sim_core.errors import SpecError, named, nearest, shown
from sim_core.models.description import MAX, MAX_LAYERS

Document = dict[str, Any]
"""Numbers of a model, for `parse_model`."""

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu", "quick_gelu": "gelu", "relu": "relu", "relu2": "squared_relu",
}  # fmt: skip

_FREE = {
    "names, versions, tokens": """
        _name_or_path architectures auto_map model_type transformers_version tokenizer_class bos_token_id eos_token_id
        pad_token_id sep_token_id cls_token_id unk_token_id decoder_start_token_id prefix id2label label2id problem_type
        task_specific_params finetuning_task torchscript use_cache summary_type summary_use_proj summary_activation
        summary_proj_to_labels summary_first_dropout is_decoder is_encoder_decoder output_attentions output_hidden_states
        return_dict generation_config attn_implementation _attn_implementation _attn_implementation_autoset
        cache_implementation use_bfloat16
    """,
    "values: initialisation, constants of norms, rotation, scaling; loss weights": """
        initializer_range initializer_factor rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon rope_theta
        rope_scaling rope_parameters rope_interleave rotary_emb_base partial_rotary_factor rotary_pct query_pre_attn_scalar
        scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn attn_output_multiplier
        output_multiplier_scale embedding_multiplier_scale router_aux_loss_coef aux_loss_alpha seq_aux output_router_logits
        router_jitter_noise norm_topk_prob routed_scaling_factor scoring_func swiglu_limit swiglu_alpha init_std
        classifier_dropout layerdrop
    """,
    "storage and inference": """
        torch_dtype dtype quantization_config pretraining_tp slow_but_exact ep_size num_experts_per_device
        initial_context_length n_ctx masked_softmax_fusion attention_softmax_in_fp32 skip_bias_add skip_bias_add_qkv
        apply_residual_connection_post_layernorm offset_alibi unk_token gradient_checkpointing
    """,
}
FREE = frozenset(" ".join(_FREE.values()).split())
"""Fields that change neither shapes nor work (partial rotation: the kernel moves whole heads)."""


class Config:
    """The fields of one file. Every method raises SpecError with the file and the field."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self._fields = fields
        self._where = where
        self._used: set[str] = set()

    def error(self, key: str, what: str) -> SpecError:
        return SpecError(f"{self._where}: {named(key)}: {what}")

    def _wrong(self, key: str, value: object, expected: str) -> SpecError:
        return self.error(key, "missing" if value is None else f"found {shown(value)}, expected {expected}")

    def take(self, *keys: str) -> None:
        """Fields that cost nothing in this family."""
        self._used.update(keys)

    def _first(self, *keys: str) -> tuple[str, Any]:
        """Which of these fields is there and not null, and its value; the first one and None where none is."""
        self._used.update(keys)
        key = next((key for key in keys if self._fields.get(key) is not None), keys[0])
        return key, self._fields.get(key)

    def has(self, key: str, otherwise: str | None = None) -> bool:
        """Whether the field is not null; an error if it is missing and transformers then takes `otherwise`."""
        if otherwise is not None and key not in self._fields:
            raise self.error(key, f"missing; transformers would take {otherwise} for this model_type: state it")
        return self._first(key)[1] is not None

    def number(self, *keys: str, default: int | None = None, least: int = 1, most: int = MAX) -> int:
        """A whole number under the first of the names that is there; without `default` it must be."""
        key, value = self._first(*keys)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "missing; it is a size, and the defaults of a class are those of one model")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(key, value, f"a whole number from {least} to {most}")
        return value

    def sizes(self, **keys: str) -> dict[str, int]:
        """Whole numbers that must be there, by our names."""
        return {size: self.number(key) for size, key in keys.items()}

    def layers(self, *keys: str) -> int:
        """The number of layers."""
        return self.number(*keys, most=MAX_LAYERS)

    def optional(self, key: str) -> int | None:
        """A whole number, or None if it is missing or null."""
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        _, value = self._first(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return default if value is None else value

    def share(self, *keys: str, default: float = 0.0) -> float:
        """The largest of some dropout probabilities."""
        most = 0.0
        for key in keys:
            value = default if (stated := self._first(key)[1]) is None else stated
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise self._wrong(key, value, "a probability below 1")
            most = max(most, float(value))
        return most

    def word(self, words: Mapping[str, str], *keys: str, default: str | None = None) -> str:
        """The value that `words` gives for the field."""
        key, _ = self._first(*keys)
        value = self._fields.get(key, default)
        if value is None:
            raise self.error(key, "missing")
        if not isinstance(value, str) or value not in words:
            raise self.error(key, f"found {shown(value)}, {nearest(str(value), words)}")
        return words[value]

    def text(self, key: str) -> str:
        """A text that must be there."""
        _, value = self._first(key)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, value, "a text")
        return value

    def section(self, key: str) -> "Config":
        """The fields of a mapping in this one."""
        _, value = self._first(key)
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "a mapping")
        return Config(value, f"{self._where}: {key}")

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers, or None."""
        _, value = self._first(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(x, bool) or not isinstance(x, int) or x < 0 for x in value):
            raise self._wrong(key, value, "a list of layer numbers")
        return tuple(value)

    def words(self, key: str, valid: Iterable[str]) -> tuple[str, ...] | None:
        """A list of words, or None."""
        _, value = self._first(key)
        if value is None:
            return None
        wrong = [x for x in value if x not in list(valid)] if isinstance(value, list) else [value]
        if wrong:
            raise self.error(key, f"found {shown(wrong[0])}, {nearest(str(wrong[0]), valid)}")
        return tuple(value)

    def only(self, key: str, expected: object) -> None:
        """Refuse any value but one, which is also that of a missing field."""
        self.take(key)
        value = self._fields.get(key, expected)
        if value != expected:
            raise self.error(key, f"found {shown(value)}, which is not modelled; expected {expected}")

    def refuse_others(self) -> None:
        """An unknown field may change the cost: it is an error, not ignored."""
        known = self._used | FREE
        for key, value in self._fields.items():
            if key not in known and value not in (None, False, 0, 0.0, [], {}, ""):
                raise self.error(key, f"unknown field that may change the cost (found {shown(value)}), {nearest(key, known)}")
