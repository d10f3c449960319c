"""Layer-wise decay: smaller learning rates for layers near the input."""

import re


def layer_rates(variables: list, layer_decay: float) -> list[float]:
    """Return the factor of the learning rate of each variable.

    Everything before the first block is layer 0, block i is layer i + 1, and
    everything after the blocks is layer depth + 1. Layer i gets the factor
    layer_decay^(depth + 1 - i). A path with `block_<i>` belongs to block i.

    Args:
        variables: Keras variables, in the order of the model.
        layer_decay: Above 0 and at most 1; with 1, all factors are 1.

    Raises:
        ValueError: If the decay is out of range, or there is no block.

    Reference: Clark et al. 2020, arXiv:2003.10555; for images Bao et al. 2022,
        arXiv:2106.08254, and He et al. 2022, arXiv:2111.06377, appendix A.1.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(
            "`layer_decay` must be more than 0 and at most 1. "
            f"Received: layer_decay={layer_decay}"
        )
    if layer_decay == 1:
        return [1.0] * len(variables)
    blocks = [re.search(r"(?:^|/)block_(\d+)/", v.path) for v in variables]
    if not any(blocks):
        raise ValueError(
            "`layer_decay` must be 1 unless paths of variables have a "
            f"`block_<i>`. Received: layer_decay={layer_decay}, "
            f"paths={[v.path for v in variables]}"
        )
    depth = 1 + max(int(block[1]) for block in blocks if block)
    rates, outside = [], 0
    for block in blocks:
        if block:
            outside = depth + 1
        layer = int(block[1]) + 1 if block else outside
        rates.append(layer_decay ** (depth + 1 - layer))
    return rates
