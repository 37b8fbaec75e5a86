"""Faults that change nothing that can be seen, each with the reason: they do not count, whatever tests there are."""

from typing import Final

EQUIVALENT: Final[tuple[tuple[str, str, str, str], ...]] = (
    (
        "planning/split.py",
        "while place < distinct and not _alike(seen[place], held):",
        "while place != distinct and not _alike(seen[place], held):",
        "place begins at 0 and grows by one up to distinct",
    ),
    (
        "planning/split.py",
        "fullest = np.zeros((2, 2, 2), np.int64)",
        "fullest = np.zeros(( 3, 2, 2), np.int64)",
        "the third row is never read",
    ),
    (
        "models/activations.py",
        "masks = 1.0 * unit.blocks if model.hidden_dropout else 0.0",
        "masks = unit.blocks if model.hidden_dropout else 0.0",
        "a whole number is multiplied by floats",
    ),
    (
        "planning/legality.py",
        "simai = ~event & (False if event.all() else _unknown_to_simai(workload, plans))",
        "simai = ~event & (True if event.all() else _unknown_to_simai(workload, plans))",
        "where all plans are of fidelity event, ~event is false",
    ),
    (
        "costing/collectives.py",
        "return links.ll_bandwidth_two_nodes if nodes == 2 else links.ll_bandwidth_more_nodes",
        "return links.ll_bandwidth_two_nodes if nodes <= 2 else links.ll_bandwidth_more_nodes",
        "one node returns above",
    ),
    (
        "costing/updates.py",
        "low, high = int(load.min()), int(load.max()) + each * (wanted // ranks + 1)",
        "low, high = int(load.min()), int(load.max()) + each * (wanted // ranks + 2)",
        "the upper end of a search by halves, which finds the same from any",
    ),
    (
        "traces/experts.py",
        "loads = [waited.loaded_s(guess.fixed_s) for waited, guess in zip(seen, guesses, strict=True)]",
        "loads = [waited.loaded_s(guess.fixed_s) for waited, guess in zip(seen, guesses, strict=False)]",
        "guesses are made of seen, one of each",
    ),
    (
        "models/weights.py",
        "if unit.kind == HEAD:",
        "if unit.kind <= HEAD:",
        "embedding returns above; layer and mtp come after head in the alphabet",
    ),
    (
        "workloads/moving.py",
        "by_layers: bool = False",
        "by_layers: bool = True",
        "each stage is costed anew instead of once for all, to the same number",
    ),
    (
        "costing/peak.py",
        "return _Held(activations, np.zeros((*activations.shape[:2], 2)), np.zeros((len(shapes), 0, 2))), buffers",
        "return _Held(activations, np.zeros((*activations.shape[: 3], 2)), np.zeros((len(shapes), 0, 2))), buffers",
        "parameters of a file's units are not read: its stages hold their share of all layers",
    ),
    (
        "costing/groups.py",
        "places = np.where((at < end[:, kind, None])[:, :, None], placed[np.minimum(at, len(placed) - 1)], 0)",
        "places = np.where((at != end[:, kind, None])[:, :, None], placed[np.minimum(at, len(placed) - 1)], 0)",
        "rows with fewer placements than others look less alike: their groups are costed anew, to the same seconds",
    ),
    (
        "planning/keys.py",
        '"checkpoint_layers": np.where(modules, plans.checkpoint_layers[rows], 0),',
        '"checkpoint_layers": np.where(modules, plans.checkpoint_layers[rows], 1),',
        "a constant in all rows that are not of modules, which the column before tells apart; a table is only compared",
    ),
    (
        "models/messages.py",
        "rows.add(REDUCE_SCATTER, TP, INPUT_GRADIENT, name, whole * region.scattered, WEIGHT_GRADIENT)",
        "rows.add(REDUCE_SCATTER, TP, 1, name, whole * region.scattered, WEIGHT_GRADIENT)",
        "INPUT_GRADIENT is 1",
    ),
    (
        "costing/modelled.py",
        "return np.where((plans.overlap_ep == 1) & (plans.ep > 1) & ~PAIRS[plans.schedule], part, 1.0)",
        "return np.where((plans.overlap_ep == 1) & (plans.ep > 1) & ~PAIRS[0], part, 1.0)",
        "nothing else asks overlap_ep of schedules of pairs: both rows that are mixed are the same, but for rounding",
    ),
    (
        "workloads/modelled.py",
        "first, whole = here - everywhere, whole + everywhere",
        "first, whole = here - everywhere, everywhere",
        "a model has one embedding: the sum has one term",
    ),
    (
        "workloads/traces/stage.py",
        'absent = ("recv_forward", "send_backward") * (stage == 0) + ("send_forward", "recv_backward") * (stage == last)',
        'absent = ("recv_forward", "send_backward") * (stage <= 0) + ("send_forward", "recv_backward") * (stage == last)',
        "stages are numbered from 0",
    ),
    (
        "models/weights.py",
        'weights.append(Weights("shared_experts", TENSOR, (Matrix(latent, h), Matrix(h, latent, by_rows=False))))',
        'weights.append(Weights("shared_experts", 1, (Matrix(latent, h), Matrix(h, latent, by_rows=False))))',
        "TENSOR is 1",
    ),
    (
        "step/whole.py",
        "longest_s, message_s, later_s = 0.0, 0.0, 0.0",
        "longest_s, message_s, later_s = -1.0, 0.0, 0.0",
        "a stage ends no earlier than its first block begins",
    ),
    (
        "costing/sending.py",
        "handed_on = (plans.dispatcher == FLEX) & (sent.kind[k] == ALL_TO_ALL) & (group[k] == EP)  # not by NCCL",
        "handed_on = (plans.dispatcher == FLEX) & (sent.kind[k] >= ALL_TO_ALL) & (group[k] == EP)  # not by NCCL",
        "the one kind beyond all-to-alls is a send, which no group of experts has",
    ),
)
"""End of the file's path, the line, what it becomes (both without spaces around), the reason."""


def why_equivalent(file: str, diff: str) -> str:
    """Why a fault changes nothing; empty where it does, or where nobody has looked. `diff`: lines `-before` and `+after`."""
    lines = diff.splitlines()
    before, after = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return next((why for path, *fault, why in EQUIVALENT if file.endswith(path) and fault == [before, after]), "")
