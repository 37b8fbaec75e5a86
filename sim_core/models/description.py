"""`Model`: what costs time or memory in a transformer, as numbers, from and to mappings; each error in one line."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from sim_core.documents import Document, key_path
from sim_core.errors import SpecError, named, nearest, shown
from sim_core.records import Record

MAX = 2**31 - 1
MAX_LAYERS = 10_000
Count = Annotated[int, Field(strict=True, ge=1, le=MAX)]
Size = Annotated[int, Field(strict=True, ge=0, le=MAX)]
Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, ge=0, lt=1)]
Layers = Annotated[tuple[Size, ...], Field()]
Ratio = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}:[1-9][0-9]{0,3}$")]

Activation = Literal["gelu", "relu", "squared_relu", "silu"]
Norm = Literal["layernorm", "rmsnorm", "layernorm_unbiased", "layernorm_plain"]
Position = Literal["learned", "rotary", "alibi", "none"]


EMBEDDING = "embedding"
LAYER = "layer"
HEAD = "head"
MTP = "mtp"
ATTENTION = "attention"
RECURRENT = "recurrent"
COMPRESSED = "compressed"
MLP = "mlp"
NONE = "none"
SYMBOLS = {
    "*": (ATTENTION, NONE, False), "M": (RECURRENT, NONE, False), "G": (RECURRENT, NONE, False), "-": (NONE, MLP, False),
    "E": (NONE, MLP, True),
}  # fmt: skip
"""Layers of a pattern as Megatron-LM writes it (--hybrid-override-pattern): one mixer each, and whether it has experts."""


Rules = list[tuple[object, str]]
"""What the numbers of a model must agree on: (true where it is violated, message)."""


class Mla(Record):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): sizes of the latents and of a head."""

    q_rank: Count | None = None  # None: queries come from the hidden state directly
    kv_rank: Count
    nope_head_dim: Count
    rope_head_dim: Count
    v_head_dim: Count


class Experts(Record):
    """Mixture of experts in place of the dense MLP of some layers."""

    count: Count
    topk: Count
    groups: Count = 1  # equal ones of experts in a row; a token's experts lie in `topk_groups` of them
    topk_groups: Count = 1
    ffn: Count  # of one expert
    shared_ffn: Size = 0  # of all shared experts together
    dense_layers: Size | Layers = 0  # the first n layers, or a list of layers (from 0), keep a dense MLP
    router_bias: Flag = False
    shared_gate: Flag = False  # a gate of one number on the output of the shared experts
    latent: Size = 0  # width in which tokens are dispatched and experts work; 0: the hidden size
    capacity_factor: Annotated[float, Field(strict=True, gt=0)] | None = None  # None: no token is dropped
    pad_to_capacity: Flag = False  # every expert computes its full capacity
    imbalance: Annotated[float, Field(strict=True, ge=1)] = 1.0  # tokens of the busiest rank / mean


class Lora(Record):
    """Low-rank adapters (arXiv 2106.09685): the model is frozen, narrow pairs beside some of its matrices are trained."""

    rank: Count
    targets: tuple[Literal["qkv", "projection", "fc1", "fc2"], ...] = ("qkv", "projection")
    dropout: Share = 0.0  # of what enters an adapter
    apart: bool = False  # queries, keys and values have one each, as PEFT's; else all three have one
    base: Literal["16-bit", "nf4", "nf4-double"] = "16-bit"  # what frozen matrices of layers are kept in

    @property
    def base_bytes(self) -> float:
        """Bytes of a weight of them, as QLoRA keeps it (arXiv 2305.14314, section 3): 4 bits, a scale for 64; `-double`: the
        scales in 8 bits, with one of 32 bits for 256 of them. 16 bits again before each product."""
        return {"16-bit": 2.0, "nf4": 0.5 + 4 / 64, "nf4-double": 0.5 + 1 / 64 + 4 / (64 * 256)}[self.base]

    def pairs(self, target: str) -> int:
        """Adapters beside a matrix of a layer."""
        return 3 if self.apart and target == "qkv" else 1


class Packing(Record):
    """Fine-tuning on many short sequences in one of the model's: attention stays inside each of them."""

    mean: Annotated[float, Field(strict=True, ge=1)]  # tokens of a packed sequence
    spread: Annotated[float, Field(strict=True, ge=0)] = 0.0  # standard deviation of their lengths, in tokens


class Window(Record):
    """Attention to near tokens only: a token sees the last `tokens` tokens, or with `chunked` those of its chunk of so many."""

    tokens: Count
    layers: Literal["all", "even", "odd"] | Ratio | Layers = "all"  # numbers count from 0; `5:1`: five such layers, one full
    chunked: Flag = False


class Indexer(Record):
    """DeepSeek's lightning indexer (DeepSeek-V3.2): scores all keys in few narrow heads; attention reads the `topk` best."""

    heads: Count
    head_dim: Count
    topk: Count


class Compressed(Record):
    """DeepSeek-V4's attention: one head that is key and value, near tokens whole, far ones in entries of several tokens.

    `ratios`: tokens of an entry, for each layer; 0: only the window. Of entries of `chosen` tokens the indexer takes the best,
    and they overlap: each sees two of them. The output is projected by groups of heads to a narrow width, and then together.
    """

    q_rank: Count
    rope_head_dim: Count
    out_rank: Count
    out_groups: Count
    window: Count
    ratios: Layers
    chosen: Count = 4


class Recurrent(Record):
    """A mixer with a state in place of keys: Mamba-2 (arXiv 2405.21060), gated delta net (2412.06464), Kimi's (2510.26692).

    A head has `head_dim` values and a state of `state` x `head_dim`. `groups` share what is read and written: groups of
    Mamba-2, heads of queries and keys of the delta rules. A kernel takes chunks of `chunk` tokens.
    """

    kind: Literal["mamba2", "gated_delta", "kda"]
    heads: Count
    head_dim: Count
    state: Count
    groups: Count
    conv: Count = 4  # tokens that the short convolution sees
    chunk: Annotated[Count, Field(le=4096)]
    beside: Flag = False  # of attention in every layer: both read one input, their outputs are added (Falcon-H1)
    normed: Flag = True  # the gated output has a norm


class Unit(NamedTuple):
    """A part of the model that is costed once: the embedding, a kind of layer, the head, a multi-token prediction layer.

    A layer is a sequence mixer and a channel mixer, or one of them alone.
    """

    name: str
    kind: str  # one of EMBEDDING, LAYER, HEAD, MTP
    number: int  # how many the model has
    moe: bool
    window: int  # tokens that a token sees; 0: all before it
    mixer: str = ATTENTION  # ATTENTION, RECURRENT, COMPRESSED or NONE
    channel: str = MLP  # MLP (experts where `moe`) or NONE
    ratio: int = 0  # tokens of an entry of compressed attention

    @property
    def attends(self) -> bool:
        """Whether it is a layer with attention."""
        return self.kind in (LAYER, MTP) and self.mixer == ATTENTION

    @property
    def blocks(self) -> int:
        """Mixers of the layer, each with a norm before it and a residual after it."""
        return (self.mixer != NONE) + (self.channel != NONE)


class Model(Record):
    """A decoder-only model. Counts are of the whole model; a layer is attention and MLP, or what `pattern` says.

    `pattern` has a letter for each layer (SYMBOLS), which is then one mixer alone; `|` ends a pipeline stage. With `recurrent`
    and `full_attention` layers are whole, and only some of them attend: each n-th, or a list of layers from 0.

    `kv_heads` and `head_dim` default to `heads` and `hidden / heads`; with `mla` they follow from it. `ffn` is that of dense
    layers and may be missing where every layer has experts. `sequence` is the length trained on; a `config.json` does not
    state it.
    """

    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    layers: Annotated[Count, Field(le=MAX_LAYERS)]
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    q_rank: Count | None = None  # queries pass a narrow projection and its norm (Step-3, arXiv 2507.19427); mla has its own
    mla: Mla | None = None
    window: Window | None = None
    indexer: Indexer | None = None
    compressed: Compressed | None = None  # attention of all layers
    recurrent: Recurrent | None = None
    residual_streams: Count = 1  # of hyper-connections (arXiv 2512.24880)
    pattern: str | None = None
    full_attention: Count | Layers | None = None  # layers that attend where the others are recurrent
    output_gate: Flag = False  # of attention: queries are projected twice, the second half gates the output
    ffn: Count | None = None
    gated: Flag
    activation: Activation
    norm: Norm
    norms_per_layer: Literal[1, 2, 3, 4] = 2  # 1: before attention and MLP side by side; 3: the shared expert has its own
    qk_norm: Flag = False  # of queries and keys, per head; with mla: of the latents
    qk_norm_whole: Flag = False  # over all heads of the projection instead
    position: Position
    positions: Count | None = None  # rows of a learned table
    tied: Flag
    vocabulary: Count
    vocabulary_multiple: Count = 128  # Megatron-LM's --make-vocab-size-divisible-by
    sequence: Count | None = None
    batch_tokens: Count | None = None  # of a step, as trained: where a first space begins
    qkv_bias: Flag = False
    projection_bias: Flag = False
    mlp_bias: Flag = False
    attention_sinks: Flag = False
    embedding_norm: Flag = False
    parallel_residual: Flag = False  # attention and MLP read the same input
    logit_softcap: Flag = False
    head_bias: Flag = False
    hidden_dropout: Share = 0.0
    attention_dropout: Share = 0.0
    experts: Experts | None = None
    mtp_layers: Size = 0
    lora: Lora | None = None  # None: all weights are trained
    packing: Packing | None = None  # None: a sequence is one text

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, document: Any) -> Any:
        """Sizes that follow from others. Wrong types are left to the checks of the fields."""
        if not isinstance(document, Mapping):
            return document
        filled = dict(document)
        layers = filled.get("layers")
        if isinstance(layers, Mapping) and {*layers} == {"pattern"}:
            filled["pattern"] = layers["pattern"]
        pattern = filled.get("pattern")
        if isinstance(pattern, str) and (isinstance(layers, Mapping) or layers is None):
            filled["layers"] = len(pattern.replace("|", "")) or None
        heads, hidden = filled.get("heads"), filled.get("hidden")
        mla = filled.get("mla")
        if mla is not None:
            for key in ("kv_heads", "head_dim"):
                if key in filled:
                    raise ValueError(f"{key}: found {shown(filled[key])}, expected no {key}: with mla it follows from mla")
            sizes = mla if isinstance(mla, Mapping) else {}
            parts = [sizes.get("nope_head_dim"), sizes.get("rope_head_dim")]
            filled["head_dim"] = sum(p for p in parts if isinstance(p, int)) or 1
        elif "head_dim" not in filled and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            if hidden % heads:
                raise ValueError(f"head_dim: missing, and hidden {hidden} does not divide by heads {heads}")
            filled["head_dim"] = hidden // heads
        if heads is not None:
            filled.setdefault("kv_heads", heads)
        return filled

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for wrong, message in self._contradictions():
            if wrong:
                raise ValueError(message)
        return self

    def _contradictions(self) -> Rules:
        experts, window = self.experts, self.window
        rules: Rules = [
            (self.heads % self.kv_heads, f"kv_heads: found {self.kv_heads}, expected a divisor of heads {self.heads}"),
            (
                self.position == "learned" and self.positions is None,
                "positions: missing, expected the rows of the learned table (position: learned)",
            ),
            (
                self.position != "learned" and self.positions is not None,
                f"positions: found {self.positions}, expected none with position: {self.position}",
            ),
            (
                self.positions and self.sequence and self.sequence > self.positions,
                f"sequence: found {self.sequence}, expected at most positions {self.positions}",
            ),
        ]
        rules += _packing_limits(self.packing, self.sequence)
        beside = self.norms_per_layer > 1 or self.parallel_residual
        rules.append((self.q_rank and (self.mla or self.lora), "q_rank: found beside mla or lora, expected one of both"))
        rules.append((not beside, "norms_per_layer: found 1, expected parallel_residual: true beside it"))
        if window is not None and not isinstance(window.layers, str):
            rules += _layer_list("window.layers", window.layers, self.layers)
        rules += self._hybrid_rules()
        if experts is None:
            has_mlp = self.pattern is None or "-" in self.pattern
            return [*rules, (self.ffn is None and has_mlp, "ffn: missing")]
        if not isinstance(experts.dense_layers, int):
            rules += _layer_list("experts.dense_layers", experts.dense_layers, self.layers)
        dense = experts.dense_layers if isinstance(experts.dense_layers, int) else len(experts.dense_layers)
        return [
            *rules,
            (experts.topk > experts.count, f"experts.topk: found {experts.topk}, expected at most count {experts.count}"),
            *_group_limits(experts),
            (dense >= self.layers, f"experts.dense_layers: found {dense}, expected fewer than layers {self.layers}"),
            (dense > 0 and self.ffn is None, f"ffn: missing, expected that of the {dense} dense layers"),
            (
                experts.pad_to_capacity and experts.capacity_factor is None,
                "experts.pad_to_capacity: found true, expected a capacity_factor beside it",
            ),
        ]

    def _hybrid_rules(self) -> Rules:
        """What a pattern and recurrent layers need."""
        pattern, recurrent, full = self.pattern, self.recurrent, self.full_attention
        letters = (pattern or "").replace("|", "")
        unknown = [letter for letter in letters if letter not in SYMBOLS]
        needs = recurrent is not None and full is None and not {*letters} & {"M", "G"} and not recurrent.beside
        rules = [
            (unknown, f"pattern: found {shown(''.join(unknown[:1]))}, expected letters of {' '.join(SYMBOLS)} and |"),
            (
                pattern is not None and len(letters) != self.layers,
                f"pattern: found {len(letters)} layers, expected {self.layers}, as in layers",
            ),
            (pattern is not None and full is not None, "full_attention: found beside a pattern, expected one of both"),
            (
                recurrent is None and (full is not None or bool({*letters} & {"M", "G"})),
                "recurrent: missing, expected the sizes of the layers that do not attend",
            ),
            (needs, "recurrent: found without layers that use it, expected a pattern with M or G, or full_attention"),
            (
                recurrent and recurrent.beside and (pattern or full is not None),
                "recurrent.beside: found true beside a pattern or full_attention, expected one of both",
            ),
            ("E" in letters and self.experts is None, "experts: missing, expected those of the layers E of the pattern"),
            (
                self.indexer and self.mla is None and self.compressed is None,
                "indexer: found without mla, which it needs",
            ),
            *self._compressed_rules(),
            (
                self.lora and len({*self.lora.targets}) < max(len(self.lora.targets), 1),
                "lora.targets: expected at least one, each once",
            ),
            (
                self.lora and "qkv" in self.lora.targets and self.mla is not None,
                "lora.targets: found qkv, but with mla there is no such matrix",
            ),
            (
                self.lora and bool({"fc1", "fc2"} & {*self.lora.targets}) and self.ffn is None,
                "lora.targets: found fc1 or fc2, but experts have no adapters here",
            ),
        ]
        if recurrent is not None:
            heads, groups = recurrent.heads, recurrent.groups
            rules.append((heads % groups, f"recurrent.groups: found {groups}, expected a divisor of heads {heads}"))
        return rules + (_layer_list("full_attention", full, self.layers) if isinstance(full, tuple) else [])

    def _compressed_rules(self) -> Rules:
        """What DeepSeek-V4's attention needs, and what cannot stand beside it."""
        compressed = self.compressed
        if compressed is None:
            return []
        others = {"mla": self.mla, "window": self.window, "pattern": self.pattern, "recurrent": self.recurrent}
        beside = next((name for name, there in others.items() if there is not None), "")
        found, groups = len(compressed.ratios), compressed.out_groups
        return [
            (beside, f"compressed: found beside {beside}, expected one of both"),
            (self.kv_heads != 1, f"kv_heads: found {self.kv_heads}, expected 1 with compressed"),
            (found != self.layers, f"compressed.ratios: found {found} layers, expected {self.layers}"),
            (self.heads % groups, f"compressed.out_groups: found {groups}, expected a divisor of heads {self.heads}"),
            (
                self.indexer is None and compressed.chosen in compressed.ratios,
                f"indexer: missing, expected that of the layers of ratio {compressed.chosen}",
            ),
            (self.lora, "lora: found beside compressed, whose matrices have no adapters here"),
        ]

    @property
    def cut(self) -> tuple[int, ...]:
        """Layers of each virtual stage that a pattern is cut into by `|`."""
        return tuple(map(len, self.pattern.split("|"))) if self.pattern and "|" in self.pattern else ()

    def state_of(self, unit: Unit) -> Recurrent | None:
        """The mixer with a state of a layer, if it has one."""
        mixer = self.recurrent
        return mixer if unit.mixer == RECURRENT or (mixer and mixer.beside and unit.attends) else None

    @property
    def v_head_dim(self) -> int:
        """Width of a head's values."""
        return self.mla.v_head_dim if self.mla else self.head_dim

    def attended(self, sequence: float) -> float:
        """Tokens of the causal square of a token's own text, as long as the mean token's: what attention works on.

        The squares of packed lengths l fill mean(l^2) / mean(l) of the square of their sum.
        """
        packing = self.packing
        return sequence if packing is None else min(packing.mean + packing.spread**2 / packing.mean, sequence)

    @cached_property
    def layer_units(self) -> tuple[Unit, ...]:
        """The kinds of layer, in the order in which they first appear."""
        kinds = [*dict.fromkeys(self._kinds)]
        return tuple(kind._replace(name=_name(kind, kinds), number=self._kinds.count(kind)) for kind in kinds)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Embedding, kinds of layer, head, then the layer of multi-token prediction if there is one."""
        last = self._kinds[-1]
        if self.pattern is not None:  # of a hybrid: attention and the channel mixer that it has (Nemotron-3)
            last = Unit("", LAYER, 1, any(kind.moe for kind in self._kinds), 0)
        last = last._replace(name=MTP, kind=MTP, number=self.mtp_layers, ratio=0)  # DeepSeek-V4: a window alone
        ends = (Unit(EMBEDDING, EMBEDDING, 1, False, 0), Unit(HEAD, HEAD, 1, False, 0))
        return (ends[0], *self.layer_units, ends[1], *([last] if self.mtp_layers else []))

    @cached_property
    def unit_of_layer(self) -> tuple[int, ...]:
        """For each layer the index of its kind in `layer_units`."""
        kinds = list(dict.fromkeys(self._kinds))
        return tuple(kinds.index(kind) for kind in self._kinds)

    @cached_property
    def _kinds(self) -> list[Unit]:
        """What each layer is, as a unit of one layer without a name."""
        letters, compressed, full = (self.pattern or "").replace("|", ""), self.compressed, self.full_attention
        dense = self.experts.dense_layers if self.experts else self.layers
        kinds = []
        for layer in range(self.layers):
            attends = full is None or (layer in full if isinstance(full, tuple) else (layer + 1) % full == 0)
            moe = layer >= dense if isinstance(dense, int) else layer not in dense
            mixer, channel = ATTENTION if attends else RECURRENT, MLP
            if letters:
                mixer, channel, moe = SYMBOLS[letters[layer]]
            kinds.append(Unit("", LAYER, 1, moe, self._window(layer) if mixer == ATTENTION else 0, mixer, channel))
            if compressed:
                kinds[-1] = kinds[-1]._replace(mixer=COMPRESSED, ratio=compressed.ratios[layer])
        return kinds

    def _window(self, layer: int) -> int:
        if self.window is None:
            return 0
        where = self.window.layers
        if isinstance(where, tuple):
            inside = layer in where
        elif ":" in where:
            near, full = map(int, where.split(":"))
            inside = layer % (near + full) < near
        else:
            inside = where == "all" or layer % 2 == (where == "odd")
        return self.window.tokens if inside else 0


def _packing_limits(packing: Packing | None, sequence: int | None) -> Rules:
    """Lengths that fit into a sequence: none is longer, which bounds their spread (Bhatia and Davis 2000)."""
    if packing is None or sequence is None:
        return []
    most = (packing.mean * max(sequence - packing.mean, 0)) ** 0.5
    return [
        (packing.mean > sequence, f"packing.mean: found {packing.mean:g}, expected at most sequence {sequence}"),
        (
            packing.spread > most,
            f"packing.spread: found {packing.spread:g}, expected at most {most:.0f}: none is longer than {sequence}",
        ),
    ]


def _group_limits(experts: Experts) -> Rules:
    """A token has to find `topk` experts in the groups that it may use (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""
    groups, allowed, count = experts.groups, experts.topk_groups, experts.count
    return [
        (count % groups, f"experts.groups: found {groups}, expected a divisor of count {count}"),
        (allowed > groups, f"experts.topk_groups: found {allowed}, expected at most groups {groups}"),
        (
            experts.topk * groups > allowed * count,
            f"experts.topk: found {experts.topk}, expected at most {allowed * count // groups}, the experts of topk_groups "
            f"{allowed} of groups {groups}",
        ),
    ]


def _layer_list(key: str, layers: tuple[int, ...], count: int) -> Rules:
    beyond = [layer for layer in layers if layer >= count]
    return [
        (beyond, f"{key}: found {beyond[:1]}, expected layers 0 to {count - 1}"),
        (len(set(layers)) < len(layers), f"{key}: found a layer twice"),
    ]


def _name(kind: Unit, every: Sequence[Unit]) -> str:
    """`layer`, with what tells it from the other kinds in front."""
    words = []
    if len({each.mixer for each in every}) > 1:
        words.append({NONE: ""}.get(kind.mixer, kind.mixer))
    if kind.mixer == ATTENTION and len({each.window for each in every if each.mixer == ATTENTION}) > 1:
        words.append("window" if kind.window else "full")
    if kind.mixer == COMPRESSED and len({each.ratio for each in every}) > 1:
        words.append(f"ratio_{kind.ratio}" if kind.ratio else "window")
    if kind.channel != NONE and len({(each.moe, each.channel) for each in every}) > 1:
        words.append("moe" if kind.moe else "dense")
    return "_".join([*filter(None, words), LAYER])


SECTIONS: dict[str, type[Record]] = {
    "mla": Mla, "experts": Experts, "window": Window, "indexer": Indexer, "compressed": Compressed, "recurrent": Recurrent,
    "lora": Lora, "packing": Packing,
}  # fmt: skip


def put(document: Document, key: str, value: object, where: str) -> None:
    """Set a value by its dotted name. Raises SpecError on an unknown name."""
    if key == "layers.pattern":  # how many there are follows
        if not isinstance(value, str):
            raise SpecError(f"{where}: layers.pattern: found {shown(value)}, expected letters of {' '.join(SYMBOLS)} and |")
        document.pop("layers", None)
        document["pattern"] = value
        return
    section, _, name = key.rpartition(".")
    names = SECTIONS[section].model_fields if section in SECTIONS else Model.model_fields
    if (section and section not in SECTIONS) or name not in names:
        known = [*Model.model_fields, *(f"{s}.{n}" for s, kind in SECTIONS.items() for n in kind.model_fields)]
        raise SpecError(f"{where}: {named(key)}: unknown key, {nearest(key, known)}")
    if section:
        inside = document.get(section)
        document[section] = {**(inside if isinstance(inside, Mapping) else {}), name: value}
    else:
        document[name] = value


def parse_model(document: object, where: str) -> Model:
    """A model from a mapping as read from YAML. Raises SpecError that names `where`, the key and the value."""
    if not isinstance(document, Mapping):
        raise SpecError(f"{where}: found {shown(document)}, expected a mapping with layers, hidden, heads, ...")
    try:
        return Model.model_validate(dict(document))
    except ValidationError as error:
        raise SpecError(f"{where}: {_first_fault(error)}") from None


def _first_fault(error: ValidationError) -> str:
    """The first fault in one line. An unknown key comes first: it is the likely cause of a missing one."""
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    path = [str(part) for part in fault["loc"] if not str(part).startswith(("literal[", "tuple[", "constrained-"))]
    key = key_path(path)
    if fault["type"] == "extra_forbidden":
        parent = SECTIONS.get(path[0], Model) if len(path) > 1 else Model
        return f"{key}: unknown key, {nearest(path[-1], parent.model_fields)}"
    if fault["type"] == "missing":
        missing = [key_path(each["loc"]) for each in faults if each["type"] == "missing"]
        hint = " (`sweep model llama3-70b --yaml` shows a whole model)" if len(missing) > 1 and len(path) == 1 else ""
        return f"{', '.join(missing)}: missing{hint}"
    if fault["type"] == "value_error":
        message = fault["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    if fault["type"] == "literal_error" and path:
        known = [*re.findall(r"'([^']+)'", fault["ctx"]["expected"]), *["a list of layers"] * (path[-1] == "layers")]
        return f"{key}: found {shown(fault['input'])}, {nearest(str(fault['input']), known)}"
    return f"{key}: found {shown(fault['input'])}, expected {_expected(fault['type'], fault['msg'])}"


def _expected(kind: str, message: str) -> str:
    """What pydantic expected, in the words of this program."""
    if kind.startswith(("int_", "tuple_")):
        return "a whole number or a list of layers" if kind.startswith("tuple_") else "a whole number"
    words = {"bool_type": "true or false", "float_type": "a number", "string_type": "text", "model_type": "a mapping"}
    return words.get(kind, message.removeprefix("Input should be "))


def model_document(model: Model) -> Document:
    """The numbers that differ from their defaults, as a mapping that `parse_model` reads back."""
    document = model.model_dump(mode="json", exclude_defaults=True)
    follows = {"kv_heads": model.kv_heads == model.heads, "head_dim": model.head_dim * model.heads == model.hidden}
    return {key: value for key, value in document.items() if not (follows.get(key) or (model.mla and key in follows))}


def model_yaml(model: Model) -> str:
    """The `model:` block of a spec, a number per line; as a file it is read back."""
    lines = []
    for key, value in model_document(model).items():
        if isinstance(value, dict | list):
            line = f"{key}: {yaml.safe_dump(value, sort_keys=False, width=10**6, default_flow_style=True).rstrip()}"
        else:
            line = yaml.safe_dump({key: value}, width=10**6).rstrip("\n")
        lines.append(f"  {line}\n")
    return "model:\n" + "".join(lines)
