"""Launch files of plain keys and values, by the table of their framework (`sweep/frameworks/*.yaml`)."""

import re
from collections.abc import Sequence
from math import ceil, prod

from sim_core import PLAN_DEFAULTS, Fields, Values, Words, parse_model
from sweep.frameworks import megatron
from sweep.frameworks.nemo import RANKS, SCHEME, TARGETS, WITH_ADAPTERS, adapters
from sweep.inputs.launch.keys import above_zero, flat, numbers_by_name, section, stated, unread
from sweep.inputs.launch.megatron import numbers_told
from sweep.inputs.told import Job

WIDTH, MOST_WIDTH, USUAL_RANK = 4, 1000, 8
"""Of an MLP in hidden sizes, and of adapters, where neither is stated."""
OF_LLAMA = 256
"""What divides the width of an MLP of GPT-NeoX's type llama."""


def read_yaml(rows: Values, path: str, document: Values) -> Job:
    """The plan and the model of a file, by the table of its framework."""
    document = {**document, **section(document, "parameters")}
    document = {str(key).replace("-", "_"): value for key, value in document.items() if key != "parameters"}
    plan, usual, notes = _filled(rows["plan"], document)
    for row in rows["opens"]:
        if re.match(row["of"], said := str(stated(document, row["at"]))):
            plan |= {row["field"]: None} if row["field"] in ("model", *PLAN_DEFAULTS) else {}
            usual.pop(row["field"], None)
            notes.append(_open(row, said))
    if plan.get("global_batch"):  # ga follows
        usual.pop("ga", None)
    whole = stated(document, rows["whole"]) is not None
    shown = ", ".join(f"{field} {value}" if whole else field for field, value in usual.items())
    told = f"so what {rows['name']} does by itself" if whole else "a part of a launch, so left open"
    notes += [f"not in this file, {told}: {shown}"] * bool(usual)
    plan |= usual if whole else {}
    if plan["pp"] == 1:
        plan |= {"vpp": 1, "schedule": None}
    elif plan["pp"] and (of_pipeline := rows.get("in_pipeline")):
        inside = stated(document, of_pipeline["micro_batch"])
        plan["micro_batch"] = 1 if inside is None else above_zero(inside)
        if not plan.pop("reshard_after_forward", None):
            plan["sharding"] = of_pipeline.get(plan["sharding"], plan["sharding"])
    if plan["tp"] == 1:
        plan |= {"sequence_parallel": False, "overlap_tp": False}
    width = prod(plan[size] or 0 for size in ("tp", "pp", "cp"))
    gpus = plan.get("all_gpus") or (plan.get("dp") or 0) * width or None
    dp = plan["dp"] = gpus // width if gpus and width and gpus % width == 0 else None
    plan["all_gpus"] = gpus
    if dp and plan["micro_batch"] and plan.get("ga") and not plan.get("global_batch"):
        plan["global_batch"] = dp * plan["micro_batch"] * plan["ga"]
    model, why = _model(rows, path, document, plan)
    facts, lines = megatron.stated({"use_flash_attn": str("flash" in str(stated(document, rows["flash"])))}, rows["stack"])
    read = {
        path for part in ("plan", "opens", "numbers") for row in rows[part] for path in f"{row['at']} {row.get('if')}".split()
    }
    read |= {path for _, said in flat(rows) for path in str(said).split()}
    notes = [*why, *notes, *lines]
    return Job(
        framework=rows["name"], plan=plan, model=model, stack=rows["stack"], facts=facts, notes=tuple(notes),
        kept=unread(document, read),
    )  # fmt: skip


def _filled(rows: Sequence[Values], document: Values) -> tuple[Fields, Fields, list[str]]:
    """Values by field, those that the framework has by itself where nothing is said, and what no word of ours is for."""
    found, usual, odd = Fields(), Fields(), []
    for row in rows:
        field, said, words = row["field"], stated(document, row["at"]), row.get("words", {})
        if found.setdefault(field) is not None or ("if" in row and not stated(document, row["if"])):
            continue
        word = str(said).rpartition(".")[2].lower()
        found[field] = words[word] if word in words else said if row.get("share") else above_zero(said)
        if said is None and "usual" in row:
            usual.setdefault(field, row["usual"])
        elif said not in (None, False, 0, "none") and word not in words and found[field] is None:
            odd.append(_open(row, str(said)))
            usual.setdefault(field)
    return found, {field: value for field, value in usual.items() if value is not None and found[field] is None}, odd


def _open(row: Values, said: str) -> str:
    """What is said of a value that is not modelled; of one that may be a path not even that."""
    return f"{row['at'].replace(' ', ' or ')} {'' if '/' in said else said[:40]}: {row['field']} is left open"


def _model(rows: Values, path: str, document: Values, plan: Fields) -> tuple[Fields, Words]:
    """The numbers of the model, and what is said of them."""
    numbers, usual, odd = _filled(rows["numbers"], document)
    if plan.pop("model", "") is None or odd:
        return {}, ("model: parts of it are not modelled; give --model", *odd)
    if not numbers.get("hidden"):
        model, why = numbers_by_name(str(stated(document, rows["by_name"]) or ""), path, plan["sequence"])
    else:
        numbers |= usual | {"sequence": plan["sequence"]}
        experts = {name[8:]: value for name in [*numbers] if name.startswith("experts.") and (value := numbers.pop(name))}
        numbers |= {"experts": experts, "ffn": None} if experts else {"ffn": _width(rows, document, numbers)}
        if numbers["position"] != "learned":
            numbers["positions"] = None
        own = {"name": "model", "source": path, **{name: value for name, value in numbers.items() if value is not None}}
        model, why = numbers_told(lambda given: parse_model({**own, **given}, path), path)
        why = (*why, f"of the model, as {rows['name']} has it by itself: {', '.join(usual)}") if usual else why
    adapted = rows["lora"]
    if stated(document, adapted["in"]):
        modules = str(stated(document, adapted["modules"]) or "")
        whole = stated(document, adapted["all"]) or re.search(r"'\*'|\*_?proj", modules)
        rank = stated(document, adapted["rank"]) or USUAL_RANK
        lora, _ = adapters({SCHEME: "lora", RANKS[1]: str(rank), TARGETS[0]: "all" if whole else modules})
        model, why = (model | {"lora": lora}, why) if model else (model, (*why, WITH_ADAPTERS.format(lora=lora)))
    return model, why


def _width(rows: Values, document: Values, numbers: Values) -> int:
    """The width of an MLP; GPT-NeoX gives a gated one two thirds of it, in two parts (megatron/model/transformer.py)."""
    ratio = stated(document, rows["ratio"])
    ratio = ratio if isinstance(ratio, int | float) and 0 < ratio < MOST_WIDTH else WIDTH
    whole = numbers["ffn"] or int(ratio * numbers["hidden"])
    of_llama = stated(document, "mlp_type") == "llama"
    if "multiple" not in rows or not numbers["gated"] or (of_llama and numbers["ffn"]):
        return whole
    multiple = OF_LLAMA if of_llama else above_zero(stated(document, rows["multiple"])) or 1
    return multiple * ceil(whole * 2 // 3 // (1 if of_llama else 2) / multiple)
