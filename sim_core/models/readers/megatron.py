"""Megatron-LM arguments to the numbers of a model, with the defaults of Megatron-LM (core 0.20, arguments.py)."""

import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from sim_core.errors import SpecError, nearest, shown
from sim_core.models.readers import megatron_arguments as of
from sim_core.models.readers.megatron_flags import DEEPSPEED, NOT_MODELLED, Flags, is_free
from sim_core.models.readers.megatron_hybrids import is_standard, kinds_of, pattern_of
from sim_core.models.readers.megatron_values import Values

Document = dict[str, Any]

SAID = frozenset(argument.flag for argument in of.SAID)
POSITIONS = {
    "learned_absolute": "learned", "absolute": "learned", "rope": "rotary", "rotary": "rotary", "yarn": "rotary",
    "alibi": "alibi", "none": "none",
}  # fmt: skip
GPT2_VOCABULARY = 50257
"""Of Megatron's GPT2BPETokenizer with the published files gpt2-vocab.json and gpt2-merges.txt."""


def is_known(flag: str) -> bool:
    """Whether a flag says something of the model, is known to say nothing of it, or is refused."""
    return says_model(flag) or flag == of.GROUPED_GEMM.flag or is_free(flag)


def says_model(flag: str) -> bool:
    """Whether a flag says something of the model."""
    return flag in SAID or flag in NOT_MODELLED


def read_megatron(flags: Flags, where: str, values: Mapping[str, object]) -> Document:
    """The numbers of a model as a mapping for `parse_model`. Those in `values` are the user's: their flags are not read.

    Raises FormatError with the line of a wrong flag, and SpecError.
    """
    return _Arguments(flags, where, values).document()


class _Arguments(Values):
    """The flags of one file."""

    def __init__(self, flags: Flags, where: str, values: Mapping[str, object]) -> None:
        super().__init__(flags, where)
        self._given = values
        for flag in flags:
            if flag in NOT_MODELLED:
                raise self.wrong(flag, f"{NOT_MODELLED[flag]}: not modelled")
            if not is_known(flag):
                near = nearest(flag, SAID)
                hint = f", {near}" if near.startswith("nearest") else ""
                raise self.wrong(flag, f"unknown flag that may change the model (leave it out if it does not){hint}")
        if self.has(of.SPEC) and not is_standard(self):
            raise self.wrong(of.SPEC.flag, "layers of another specification: not modelled")
        if DEEPSPEED in flags and self.number(of.EXPERTS, 1) > 1:
            raise self.wrong(of.EXPERTS.flag, "experts of DeepSpeed: not modelled")

    def document(self) -> Document:
        """Every part, minus what the user gives."""
        fields = [argument.field for argument in of.NUMBERS]
        document: Document = {key: value for key, value in self._given.items() if key in fields}
        for argument in of.NUMBERS:
            if argument.field not in self._given and (value := self.optional(argument)) is not None:
                document[argument.field] = value
        if "pattern" not in self._given:
            given = document.get("layers")
            document |= pattern_of(self, given if isinstance(given, int) else None)
        for argument in (of.LAYERS, of.HIDDEN, of.HEADS):
            if argument.field not in document:
                raise SpecError(f"{self.where}: {argument.flag}: missing")
        layers, hidden = document["layers"], document["hidden"]
        parts: dict[str, Callable[[], Document]] = {
            "vocabulary": self._vocabulary,
            "ffn": lambda: {"ffn": document.get("ffn", int(hidden * 8 / 3 / 64) * 64 if self.has(of.SWIGLU) else 4 * hidden)},
            "position": self._position,
            "mla": lambda: self._attention(document),
            "window": lambda: self._window(layers),
            "experts": lambda: self._experts(document, layers),
            "recurrent": lambda: kinds_of(self, document),
        }
        document |= self._style()
        for key, part in parts.items():
            if key not in self._given:
                document |= part()
        return document

    def _vocabulary(self) -> Document:
        padded = self.optional(of.PADDED_VOCABULARY) or self.optional(of.PAD_VOCABULARY)
        if padded:
            return {"vocabulary": padded, "vocabulary_multiple": 1}
        places = self.flags.get(of.TOKENIZER.flag, [])
        kind = places[-1].values[0] if places and places[-1].values else None
        words = self.optional(of.VOCABULARY)
        if words:
            return {"vocabulary": words + of.NULL_TOKENIZER_ADDS * (kind == of.NULL_TOKENIZER)}
        files = [PurePath(value).name for place in self.flags.get(of.VOCABULARY_FILE.flag, []) for value in place.values]
        if kind == "GPT2BPETokenizer" or (kind is None and "gpt2-vocab.json" in files):
            return {"vocabulary": GPT2_VOCABULARY}
        raise SpecError(f"{self.where}: vocabulary: missing; Megatron-LM takes it from the tokenizer: give vocabulary=...")

    def _style(self) -> Document:
        """Activation, norm, biases, dropout, tying."""
        bias = not self.has(of.NO_BIAS)
        return {
            "gated": any(map(self.has, (of.SWIGLU, of.GEGLU, of.QUICK_GEGLU))),
            "activation": "silu" if self.has(of.SWIGLU) else "squared_relu" if self.has(of.SQUARED_RELU) else "gelu",
            "norm": self.choice(of.NORM, {"layernorm": "layernorm", "rmsnorm": "rmsnorm"}, "layernorm"),
            "qk_norm": self.has(of.QK_NORM),
            "tied": not self.has(of.UNTIED),
            "qkv_bias": bias or self.has(of.QKV_BIAS),
            "projection_bias": bias,
            "mlp_bias": bias,
            "embedding_norm": self.has(of.EMBEDDING_NORM),
            "hidden_dropout": self.share(of.HIDDEN_DROPOUT, 0.1),
            "attention_dropout": self.share(of.ATTENTION_DROPOUT, 0.1),
            "attention_sinks": self.choice(of.SOFTMAX, {"vanilla": "", "learnable": "yes"}, "vanilla") == "yes",
        }

    def _position(self) -> Document:
        position = self.choice(of.POSITION, POSITIONS, "learned_absolute")
        if self.has(of.ROTARY):
            position = "rotary"
        if position == "learned" and self.has(of.NO_POSITION):
            position = "none"
        if position != "learned":
            return {"position": position}
        rows = self.optional(of.POSITIONS)
        if rows is None and "positions" not in self._given:
            raise SpecError(f"{self.where}: {of.POSITIONS.flag}: missing")
        return {"position": position, "positions": rows}

    def _attention(self, document: Document) -> Document:
        if any(map(self.has, (of.MLA, of.Q_RANK, of.KV_RANK))):
            document.pop("head_dim", None)  # without effect
            nope, rope = self.number(of.OLD_NOPE_DIM, 128), self.number(of.OLD_ROPE_DIM, 64)
            sizes = self.numbers({of.KV_RANK: 32, of.NOPE_DIM: nope, of.ROPE_DIM: rope, of.V_DIM: 128})
            return {"mla": {"q_rank": self.optional(of.Q_RANK), **sizes}, "qkv_bias": self.has(of.QKV_BIAS)}
        if self.has(of.GROUPED):
            return {"kv_heads": self.number(of.KV_HEADS, 1)}
        deepspeed = self.optional(of.DEEPSPEED_KV_HEADS)
        return {"kv_heads": deepspeed} if deepspeed else {}

    def _window(self, layers: int) -> Document:
        if not self.has(of.WINDOW):
            return {}
        text = " ".join(self.flags[of.WINDOW.flag][-1].values)
        left = re.split(r"[,\s()]+", text.strip("() "))[0]
        if left == "-1":
            return {}
        if not re.fullmatch(r"[0-9]{1,9}", left):
            raise self.wrong(of.WINDOW.flag, f"found {shown(text)}, expected LEFT,RIGHT")
        window: Document = {"tokens": int(left) + 1}  # a token sees itself and LEFT before it
        every = self.word(of.WINDOW_SKIP) or ""
        if re.fullmatch(r"[0-9]{1,4}", every) and int(every) > 1:
            window["layers"] = "even" if every == "2" else f"{int(every) - 1}:1"
        elif every:
            inside = self.pattern(of.WINDOW_SKIP, layers, lambda layer, n: (layer + 1) % n != 0)
            window["layers"] = [layer for layer, here in enumerate(inside) if here]
        return {"window": window}

    def _experts(self, document: Document, layers: int) -> Document:
        count = self.number(of.EXPERTS, 0)
        if count < 2 and not (count == 1 and self.has(of.TOPK)):
            return {}
        ffn, sizes = document.get("ffn", 0), {of.TOPK: 2, of.GROUPS: 1, of.TOPK_GROUPS: 1}
        experts = {
            "count": count,
            **self.numbers(sizes | {of.EXPERT_FFN: ffn, of.SHARED_FFN: 0, of.LATENT: 0}),
            "shared_gate": self.has(of.SHARED_GATE),
            "pad_to_capacity": self.has(of.PAD_TO_CAPACITY),
        }
        if self.has(of.CAPACITY):
            experts["capacity_factor"] = self.share(of.CAPACITY, 1.0)
        if self.has(of.MOE_LAYERS):
            inside = self.pattern(of.MOE_LAYERS, layers, lambda layer, n: layer % n == 0)
            dense = [layer for layer, here in enumerate(inside) if not here]
            experts["dense_layers"] = len(dense) if dense == list(range(len(dense))) else dense
        if "pattern" in document:
            experts["dense_layers"] = 0  # the pattern says where they are
        if not experts.get("dense_layers") and "-" not in document.get("pattern", ""):
            document.pop("ffn", None)  # no layer has a dense MLP
        return {"experts": experts}
