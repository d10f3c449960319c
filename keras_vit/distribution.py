"""Layouts of the weights of a Vision Transformer over several devices."""

import keras

# The part of a path before the name of a layer: the models around it.
_ANYWHERE = "(.*/)?"
# Pairs of dense layers in the blocks and in the poolings with attention: the
# second reads what the first has computed. Their kernels are (D, D') and
# (D', D).
_FIRST = r"(qkv|query|key_value|mlp/hidden)"
_SECOND = r"((block_\d+/attention|pooling)/out|mlp/out)"


def layout_map(
    device_mesh: keras.distribution.DeviceMesh, fully_sharded: bool = False
) -> keras.distribution.LayoutMap:
    """Return the layouts of the weights for `keras.distribution.ModelParallel`.

    The first axis of the mesh splits the images of a batch. The second axis,
    if there is one, splits each pair of dense layers: the first of the two by
    its outputs, the second by its inputs (tensor parallelism). With
    `fully_sharded`, the first axis splits the weights as well, and each device
    collects those of a layer when it needs them. What the optimizer keeps is
    split as its weights are.

    Works for every ViTConfig without a ResNet stem, whose convolutions every
    device keeps. The axes must divide what they split: the width, `mlp_dim`
    (twice that if the MLP is gated) and three times the width.

    Args:
        device_mesh: With one axis or two.
        fully_sharded: Whether the first axis splits the weights.

    Returns:
        The layouts by the paths of the weights. Others are on every device.

    Raises:
        ValueError: If the mesh has more than two axes, or has one axis that
            would split no weights.

    Example:
        >>> mesh = keras.distribution.DeviceMesh(
        ...     (1, 1), ["batch", "model"], ["cpu:0"]
        ... )
        >>> layouts = layout_map(mesh)
        >>> layouts["block_00/mlp/hidden/kernel"].axes
        (None, 'model')

    Reference: Shoeybi et al. 2019, arXiv:1909.08053, section 3, for pairs of
        layers; Rajbhandari et al. 2020, arXiv:1910.02054, for the weights.
    """
    names = list(device_mesh.axis_names)
    if len(names) > 2:
        raise ValueError(
            "`device_mesh` must have one axis, for the images of a batch, or "
            f"two, for images and weights. Received: axis_names={names}"
        )
    if len(names) == 1 and not fully_sharded:
        raise ValueError(
            "A `device_mesh` with one axis splits only the images of a batch. "
            "Give it a second axis, or set `fully_sharded=True`. "
            f"Received: axis_names={names}"
        )
    data = names[0] if fully_sharded else None
    model = names[1] if len(names) == 2 else None
    rules = {
        f"{_FIRST}/kernel": (data, model),
        f"{_FIRST}/bias": (model,),
        f"{_SECOND}/kernel": (model, data),
        "patch_encoder/kernel": (None, None, None, data),
        "position_embedding(_[0-9]+)?/embedding": (None, data),
        "(predictions|pre_logits)/kernel": (data, None),
    }
    layouts = keras.distribution.LayoutMap(device_mesh)
    for path, axes in rules.items():
        if any(axes):
            layouts[f"{_ANYWHERE}{path}"] = axes
    return layouts
