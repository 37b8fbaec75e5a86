"""Megatron-LM arguments to the numbers of a model, with the defaults of Megatron-LM (core 0.20, arguments.py)."""

import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from sim_core.errors import SpecError, nearest, shown
from sim_core.models.readers.megatron_flags import NOT_MODELLED, Flags, is_free
from sim_core.models.readers.megatron_hybrids import FLAGS as OF_KINDS, SPEC, is_standard, kinds_of, pattern_of
from sim_core.models.readers.megatron_values import Values

Document = dict[str, Any]

NUMBERS: Final[Mapping[str, str]] = {
    "--num-layers": "layers",
    "--hidden-size": "hidden",
    "--num-attention-heads": "heads",
    "--ffn-hidden-size": "ffn",
    "--kv-channels": "head_dim",
    "--seq-length": "sequence",
    "--make-vocab-size-divisible-by": "vocabulary_multiple",
    "--mtp-num-layers": "mtp_layers",
}
"""Flags of one whole number, and the number of the model that they are."""

OTHERS: Final = (
    *OF_KINDS,
    "--add-qkv-bias", "--attention-dropout", "--disable-bias-linear", "--embed-layernorm", "--extra-vocab-size",
    "--geglu", "--group-query-attention", "--hidden-dropout", "--kv-lora-rank", "--max-position-embeddings",
    "--moe-expert-capacity-factor", "--moe-ffn-hidden-size", "--moe-latent-size", "--moe-layer-freq",
    "--moe-pad-expert-input-to-capacity",
    "--moe-router-group-topk", "--moe-router-num-groups", "--moe-router-topk", "--moe-shared-expert-gate",
    "--moe-shared-expert-intermediate-size",
    "--moe-train-capacity-factor",
    "--multi-latent-attention", "--no-position-embedding", "--normalization", "--num-experts", "--num-key-value-heads",
    "--num-query-groups", "--pad-vocab-size-to", "--padded-vocab-size", "--position-embedding-type", "--q-lora-rank",
    "--qk-head-dim", "--qk-layernorm", "--qk-nope-head-dim", "--qk-pos-emb-head-dim", "--qk-rope-head-dim",
    "--quick-geglu", "--softmax-type", "--squared-relu", "--swiglu", "--untie-embeddings-and-output-weights",
    "--use-rotary-position-embeddings", "--v-head-dim", "--vocab-file", "--vocab-size", "--window-attn-skip-freq",
    "--window-size",
)  # fmt: skip
POSITIONS: Final = {
    "learned_absolute": "learned",
    "absolute": "learned",
    "rope": "rotary",
    "rotary": "rotary",
    "yarn": "rotary",
    "alibi": "alibi",
    "none": "none",
}
GPT2_VOCABULARY: Final = 50257
"""Of Megatron's GPT2BPETokenizer with the published files gpt2-vocab.json and gpt2-merges.txt."""


def is_known(flag: str) -> bool:
    """Whether a flag says something of the model, is known to say nothing of it, or is refused."""
    return flag in NUMBERS or flag in OTHERS or flag in NOT_MODELLED or is_free(flag)


def says_model(flag: str) -> bool:
    """Whether a flag says something of the model."""
    return flag in NUMBERS or flag in OTHERS or flag in NOT_MODELLED


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
        for flag, places in flags.items():
            if flag in NOT_MODELLED:
                raise self.error(flag, f"{NOT_MODELLED[flag]}: not modelled", places[-1].line)
            if not is_known(flag):
                near = nearest(flag, [*NUMBERS, *OTHERS])
                hint = f", {near}" if near.startswith("nearest") else ""
                what = f"unknown flag that may change the model (leave it out if it does not){hint}"
                raise self.error(flag, what, places[-1].line)
        if SPEC in flags and not is_standard(self):
            raise self.wrong(SPEC, "layers of another specification: not modelled")
        if "--deepspeed" in flags and self.number("--num-experts", 1) > 1:
            raise self.error("--num-experts", "experts of DeepSpeed: not modelled", flags["--num-experts"][-1].line)

    def document(self) -> Document:
        """Every part, minus what the user gives."""
        document: Document = {key: value for key, value in self._given.items() if key in NUMBERS.values()}
        for flag, key in NUMBERS.items():
            if key not in self._given and (value := self.optional(flag)) is not None:
                document[key] = value
        if "pattern" not in self._given:
            given = document.get("layers")
            experts = self.number("--num-experts", 0) > 1
            document |= pattern_of(self, given if isinstance(given, int) else None, experts=experts)
        missing = [flag for flag, key in list(NUMBERS.items())[:3] if key not in document]
        if missing:
            raise SpecError(f"{self.where}: {missing[0]}: missing")
        layers = document.get("layers", 0)
        parts: dict[str, Callable[[], Document]] = {
            "vocabulary": self._vocabulary,
            "ffn": lambda: {} if "ffn" in document else {"ffn": self._default_ffn(document)},
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
        padded = self.optional("--padded-vocab-size") or self.optional("--pad-vocab-size-to")
        if padded:
            return {"vocabulary": padded, "vocabulary_multiple": 1}
        tokenizer = self.flags.get("--tokenizer-type")
        kind = tokenizer[-1].values[0] if tokenizer and tokenizer[-1].values else None
        words = self.optional("--vocab-size")
        if words:  # the NullTokenizer adds an end-of-document token
            return {"vocabulary": words + (kind == "NullTokenizer")}
        files = [PurePath(value).name for place in self.flags.get("--vocab-file", []) for value in place.values]
        if kind == "GPT2BPETokenizer" or (kind is None and "gpt2-vocab.json" in files):
            return {"vocabulary": GPT2_VOCABULARY}
        raise SpecError(f"{self.where}: vocabulary: missing; Megatron-LM takes it from the tokenizer: give vocabulary=...")

    def _default_ffn(self, document: Document) -> int:
        hidden = document.get("hidden", 0)
        return int(hidden * 4 * 2 / 3 / 64) * 64 if self.has("--swiglu") else 4 * hidden

    def _style(self) -> Document:
        """Activation, norm, biases, dropout, tying."""
        bias = not self.has("--disable-bias-linear")
        gated = [flag for flag in ("--swiglu", "--geglu", "--quick-geglu") if self.has(flag)]
        activation = "silu" if self.has("--swiglu") else "squared_relu" if self.has("--squared-relu") else "gelu"
        return {
            "gated": bool(gated),
            "activation": activation,
            "norm": self.choice("--normalization", {"layernorm": "layernorm", "rmsnorm": "rmsnorm"}, "layernorm"),
            "qk_norm": self.has("--qk-layernorm"),
            "tied": not self.has("--untie-embeddings-and-output-weights"),
            "qkv_bias": bias or self.has("--add-qkv-bias"),
            "projection_bias": bias,
            "mlp_bias": bias,
            "embedding_norm": self.has("--embed-layernorm"),
            "hidden_dropout": self.share("--hidden-dropout", 0.1),
            "attention_dropout": self.share("--attention-dropout", 0.1),
            "attention_sinks": self.choice("--softmax-type", {"vanilla": "", "learnable": "yes"}, "vanilla") == "yes",
        }

    def _position(self) -> Document:
        position = self.choice("--position-embedding-type", POSITIONS, "learned_absolute")
        if self.has("--use-rotary-position-embeddings"):
            position = "rotary"
        if position == "learned" and self.has("--no-position-embedding"):
            position = "none"
        if position != "learned":
            return {"position": position}
        rows = self.optional("--max-position-embeddings")
        if rows is None and "positions" not in self._given:
            raise SpecError(f"{self.where}: --max-position-embeddings: missing")
        return {"position": position, "positions": rows}

    def _attention(self, document: Document) -> Document:
        if self.has("--multi-latent-attention") or self.has("--q-lora-rank") or self.has("--kv-lora-rank"):
            document.pop("head_dim", None)  # --kv-channels has no effect
            return {
                "mla": {
                    "q_rank": self.optional("--q-lora-rank"),
                    "kv_rank": self.number("--kv-lora-rank", 32),
                    "nope_head_dim": self.number("--qk-head-dim", self.number("--qk-nope-head-dim", 128)),
                    "rope_head_dim": self.number("--qk-pos-emb-head-dim", self.number("--qk-rope-head-dim", 64)),
                    "v_head_dim": self.number("--v-head-dim", 128),
                },
                "qkv_bias": self.has("--add-qkv-bias"),
            }
        if self.has("--group-query-attention"):
            return {"kv_heads": self.number("--num-query-groups", 1)}
        deepspeed = self.optional("--num-key-value-heads")
        return {"kv_heads": deepspeed} if deepspeed else {}

    def _window(self, layers: int) -> Document:
        places = self.flags.get("--window-size")
        if not places:
            return {}
        left = re.split(r"[,\s()]+", " ".join(places[-1].values).strip("() "))[0]
        if left == "-1":
            return {}
        if not re.fullmatch(r"[0-9]{1,9}", left):
            raise self.error(
                "--window-size", f"found {shown(' '.join(places[-1].values))}, expected LEFT,RIGHT", places[-1].line
            )
        window: Document = {"tokens": int(left) + 1}  # a token sees itself and LEFT before it
        every = self.word("--window-attn-skip-freq") or ""
        if re.fullmatch(r"[0-9]{1,4}", every) and int(every) > 1:
            window["layers"] = "even" if every == "2" else f"{int(every) - 1}:1"
        elif every:
            inside = self.pattern("--window-attn-skip-freq", layers, lambda layer, n: (layer + 1) % n != 0)
            window["layers"] = [layer for layer, here in enumerate(inside) if here]
        return {"window": window}

    def _experts(self, document: Document, layers: int) -> Document:
        count = self.number("--num-experts", 0)
        if count < 2 and not (count == 1 and self.has("--moe-router-topk")):
            return {}
        experts: Document = {
            "count": count,
            "topk": self.number("--moe-router-topk", 2),
            "groups": self.number("--moe-router-num-groups", 1),
            "topk_groups": self.number("--moe-router-group-topk", 1),
            "ffn": self.number("--moe-ffn-hidden-size", document.get("ffn", 0)),
            "shared_ffn": self.number("--moe-shared-expert-intermediate-size", 0),
            "shared_gate": self.has("--moe-shared-expert-gate"),
            "latent": self.number("--moe-latent-size", 0),
            "pad_to_capacity": self.has("--moe-pad-expert-input-to-capacity"),
        }
        if self.has("--moe-expert-capacity-factor"):
            experts["capacity_factor"] = self.share("--moe-expert-capacity-factor", 1.0)
        if self.has("--moe-layer-freq"):
            inside = self.pattern("--moe-layer-freq", layers, lambda layer, n: layer % n == 0)
            dense = [layer for layer, here in enumerate(inside) if not here]
            experts["dense_layers"] = len(dense) if dense == list(range(len(dense))) else dense
        if "pattern" in document:
            experts["dense_layers"] = 0  # the pattern says where they are
        if not experts.get("dense_layers") and "-" not in document.get("pattern", ""):
            document.pop("ffn", None)  # no layer has a dense MLP
        return {"experts": experts}
