"""A SimAI text from its header and layer lines: the inverse of the reader."""

from __future__ import annotations

from sim_core.workloads.readers.simai_text import Header, Record


def write_simai_text(header: Header, records: list[Record]) -> str:
    """The text of a header and its layer lines; `read_simai_text` restores both."""
    keys = {
        "model_parallel_NPU_group": header.tp,
        "ep": header.ep,
        "pp": header.pp,
        "vpp": header.vpp,
        "ga": header.ga,
        "all_gpus": header.all_gpus,
        "checkpoints": _ids(header.checkpoints),
        "checkpoint_initiates": _ids(header.checkpoint_initiates),
        "pp_comm": header.pp_comm,
    }
    lines = [" ".join([header.policy, *(f"{key}: {value}" for key, value in keys.items())]), str(len(records))]
    lines += ["\t".join(map(str, _columns(record))) for record in records]
    return "\n".join(lines) + "\n"


def _ids(ids: tuple[int, ...]) -> str:
    return " ".join(map(str, (len(ids), *ids)))


def _columns(record: Record) -> list[object]:
    columns: list[object] = [record.name, record.dependency]
    for phase in range(3):
        collective = record.collective[phase] + record.suffix[phase]
        columns += [record.compute_ns[phase], collective, record.comm_bytes[phase]]
    return [*columns, record.update]
