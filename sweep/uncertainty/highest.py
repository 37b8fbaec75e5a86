"""The highest MFU of a measured run, by device, kind of model and bits: a simulated plan above it is hard to believe."""

import json
from pathlib import Path

from sim_core.documents import Values
from sweep.uncertainty.evidence import DENSE, EXPERTS, KINDS, kind_of_model

RECORDED = Path(__file__).parent / "data" / "highest.json"
"""By kind (`make validation`): the MFU as a fraction of the peak in bf16, of how many runs, and of which model."""


def kind_of(device: str, *, experts: bool, precision: str) -> str:
    """What runs are alike in: device, class of model, bits of their GEMMs."""
    return f"{device.partition('+')[0]}, {EXPERTS if experts else DENSE}, {bits_of(precision)} bits"


def bits_of(precision: str) -> int:
    """Bits of what the GEMMs of a precision multiply."""
    return 4 if "fp4" in precision else 8 if "fp8" in precision else 16


def above_measured(row: Values, provenance: Values) -> str:
    """What measured runs a plan of a result beats, where its MFU is higher than that of all of its kind; else empty."""
    of_model = kind_of_model(provenance)
    kind = kind_of(str(row.get("hardware")), experts=of_model == EXPERTS, precision=str(row.get("precision", "")))
    known, mfu = json.loads(RECORDED.read_text(encoding="utf-8")).get(kind), row.get("mfu")
    if known is None or mfu is None or mfu <= known["mfu"]:
        return ""
    device, _, bits = kind.split(", ")
    runs = f"all {known['runs']} measured runs" if known["runs"] > 1 else "the one measured run"
    of_kind = KINDS[of_model]
    return f"{runs} of {of_kind} on {device} in {bits}: at most {known['mfu']:.1%} ({known['model']})"
