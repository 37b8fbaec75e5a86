"""Keys of nanotron's YAML, which its log prints as settings: those of the table by which its launch files are read."""

from pathlib import Path

from sim_core import Argument
from sim_core.documents import shipped_document
from sweep.frameworks import deepspeed
from sweep.frameworks.plan import Launched

PAGE = "nanotron"
KEYS: dict[str, Argument[Launched]] = {
    row["field"]: Argument(row["at"].rpartition(".")[2], field=row["field"])
    for row in shipped_document(Path(__file__).with_suffix(".yaml"))["plan"]
    if "." in row["at"] and not row["at"].startswith("model.")
}
"""By our fields; a model's are other words of ours."""
STAGE, RECOMPUTE, ASYNC_TP = map(KEYS.__getitem__, ("sharding", "checkpointing", "overlap_tp"))
STAGES = deepspeed.ZERO[:2]
"""What ranks share, by the stage of ZeRO."""
LOGGED = {KEYS[name].name: name for name in ("dp", "pp", "tp", "ep", "cp", "micro_batch", "sequence")}
"""Settings of a plan that its log prints, by our fields."""
