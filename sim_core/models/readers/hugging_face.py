"""A Hugging Face `config.json` to the numbers of a model, by `model_type`, or as a decoder with the parts that it names."""

from collections.abc import Mapping

from sim_core.documents import Values
from sim_core.errors import SpecError, nearest, shown
from sim_core.models.readers.config_fields import Config, Document, row_of, tables
from sim_core.models.readers.families import decoder

_OF_PART = {
    "mla": "kv_lora_rank", "window": "sliding_window", "experts": "num_experts", "mtp": "num_nextn_predict_layers",
    "indexer": "index_topk", "softcap": "final_logit_softcapping", "position": "position_embedding_type",
}  # fmt: skip
"""The field that tells of a part where the family is not known."""
_NORMS = {"rms_norm_eps": "rmsnorm", "layer_norm_eps": "layernorm", "layer_norm_epsilon": "layernorm"}
_TEXT = "text_config"
ASSUMED = "no known family, read as a decoder with the parts that its fields name"
"""In the source of a model that is read so: its parameters are to be compared with the published ones."""


def read_config(fields: Values, where: str) -> Document:
    """The numbers of a model as a mapping for `parse_model`, without name and source. Raises SpecError.

    Of a model that sees or hears as well only the text model is read, and the source says so; also where its family is not
    known.
    """
    inner = fields.get(_TEXT)
    if isinstance(inner, Mapping):
        document = read_config({**inner, "model_type": inner.get("model_type", fields.get("model_type"))}, f"{where}: {_TEXT}")
        apart = ", ".join(
            sorted(key for key in fields if key.endswith("_config") and key not in (_TEXT, "quantization_config"))
        )
        return document | {"source": document.get("source", f"{where}, {_TEXT}") + (f"; not counted: {apart}" if apart else "")}
    if "vision_config" in fields:
        raise SpecError(f"{where}: a multimodal model without {_TEXT}; expected that of its text model")
    kind, families = fields.get("model_type"), tables()["families"]
    if not isinstance(kind, str):
        found = "missing" if kind is None else f"found {shown(kind)}"
        raise SpecError(f"{where}: model_type: {found}, {nearest('', families)}")
    if kind in families:
        config = Config(fields, where, row_of(kind))
        document = decoder(config, config.row.parts)
    else:
        config, document = _unknown(fields, where, kind)
    config.refuse_others()
    return document


def _unknown(fields: Values, where: str, kind: str) -> tuple[Config, Document]:
    """A decoder of the parts that its fields name; what no field tells is said in its source."""
    row, mixers = row_of(kind), tables()["mixers"]
    config = Config(fields, where, row)
    mixer = next((name for name, sizes in mixers.items() if config.value(sizes["heads"]) is not None), None)
    parts = [part for part, key in _OF_PART.items() if config.value(key) is not None] + ["recurrent"] * (mixer is not None)
    parts += ["window"] * (mixer is None and "window" not in parts and config.value("layer_types") is not None)
    config = Config(fields, where, row._replace(rules={"recurrent": mixer}))
    document = decoder(config, " ".join(parts))
    norm = next((norm for key, norm in _NORMS.items() if fields.get(key) is not None), None)
    if norm is None:
        raise config.error("rms_norm_eps", "missing, and layer_norm_eps, too: they tell the kind of norm")
    document["norm"] = norm
    document["gated"] = document["activation"] == "silu" or (document["activation"] == "gelu" and norm == "rmsnorm")
    document["qk_norm"] = document["qk_norm"] or "mla" in document
    words = (
        f"{'' if document['gated'] else 'no '}gate in the MLP, none of attention, two norms a layer, attention before the MLP"
    )
    words += ", biases of queries, keys, values" if document["qkv_bias"] else ", no biases of attention"
    words += " and of attention's output" if document["projection_bias"] else ""
    words += "" if document["qk_norm"] else ", no norms of queries and keys"
    if "experts" in document:
        words += ", no gate of shared experts" if document["experts"]["shared_ffn"] else ", no shared experts"
    return config, document | {"source": f"{where}: model_type {shown(kind)}: {ASSUMED}; assumed, as none says: {words}"}
