"""Files of LoRA weights alone: save_lora and load_lora."""

import os

from keras_vit.layers.base import as_float32
from keras_vit.models.tuning import (
    TunableModel,
    check_lora,
    describe_lora,
    layers_with_lora,
    set_trained,
)
from keras_vit.models.vit import check_vision_transformer
from keras_vit.weights.containers import (
    FLOATS,
    open_file,
    write_safetensors,
)

DESCRIPTION = "lora"  # In the description of the file.
# The arguments of `enable_lora` in it.
TYPES = {"rank": int, "alpha": (int, float), "layers": list}


def save_lora(model: TunableModel, path: str | os.PathLike):
    """Write the LoRA weights of a model and its other trainable weights.

    The file has the two factors of each low-rank update and all other trainable
    weights, such as the head, in float32, with the statistics of batch norms.
    Its metadata has the rank, the alpha and the names of the layers. The model
    that was fine-tuned is needed to use it, see `load_lora`.

    Args:
        model: A VisionTransformer or a DensePredictor with LoRA, see
            `VisionTransformer.enable_lora`.
        path: The file to write; its name ends in `.safetensors`.

    Raises:
        ValueError: If the model has no LoRA, or the name ends otherwise.
    """
    _check_model(model)
    path = os.path.expanduser(os.fspath(path))
    if not path.endswith(".safetensors"):
        raise ValueError(
            "`path` must be the name of a .safetensors file. "
            f"Received: path={path!r}"
        )
    if not layers_with_lora(model):
        raise ValueError(
            "`model` must have LoRA updates; add them with "
            f"`model.enable_lora`. Received: model={model.name!r}"
        )
    trained = {weight.path: weight for weight in model.trainable_weights}
    # The statistics of batch norms change in training, too.
    for layer in model._flatten_layers():
        if layer.trainable:
            kept = layer._non_trainable_variables
            trained |= {weight.path: weight for weight in kept}
    write_safetensors(
        path,
        ((name, as_float32(weight)) for name, weight in trained.items()),
        {name: tuple(weight.shape) for name, weight in trained.items()},
        {DESCRIPTION: describe_lora(model)},
    )


def load_lora(model: TunableModel, path: str | os.PathLike):
    """Add the LoRA weights of a file that `save_lora` wrote to a model.

    Afterwards, the same weights are trainable as when the file was written.
    Everything is checked first: after an error, the model is unchanged.

    Args:
        model: The model that was fine-tuned, without LoRA or with the same
            layers, rank and alpha as in the file.
        path: The file.

    Raises:
        ValueError: If the file is damaged or of another kind, or its arrays do
            not fit the model.
    """
    _check_model(model)
    with open_file(path) as file:
        found = file.json.get(DESCRIPTION)
        if not isinstance(found, dict) or not all(
            isinstance(found.get(name), kind) for name, kind in TYPES.items()
        ):
            raise ValueError(
                f"{file.path} must be a file that `save_lora` has written; "
                "read other checkpoints with `from_checkpoint`"
            )
        described = {name: found[name] for name in TYPES}
        targets = layers_with_lora(model)
        has_lora = bool(targets)
        if has_lora and describe_lora(model) != described:
            raise ValueError(
                "`model` must have no LoRA, or the same as the file. Received: "
                f"{describe_lora(model)} in the model, {described} in "
                f"{file.path}"
            )
        try:
            targets = targets or check_lora(model, **described)
        except ValueError as error:
            raise ValueError(
                f"{file.path} does not fit the model: {error}"
            ) from None
        _check_shapes(file, model, targets, described["rank"])
        arrays = {name: file.read(name) for name in file.arrays}
    if not has_lora:
        model.enable_lora(**described, keep=())
    set_trained(model, lambda weight_path: weight_path in arrays)
    for weight in model.weights:
        if weight.path in arrays:
            weight.assign(arrays[weight.path])


def _check_model(model):
    """Raise a ValueError unless a model can have LoRA."""
    if not isinstance(model, TunableModel):
        check_vision_transformer(model)


def _check_shapes(file, model, targets, rank):
    """Raise a ValueError unless the arrays are weights of the model."""
    shapes = {weight.path: tuple(weight.shape) for weight in model.weights}
    factors = {}
    for layer in targets:
        *rows, columns = layer.kernel.shape
        factors[f"{layer.path}/lora_kernel_a"] = (*rows, rank)
        factors[f"{layer.path}/lora_kernel_b"] = (rank, columns)
    shapes |= factors
    for name in [*file.arrays, *factors]:
        array, expected = file.arrays.get(name), shapes.get(name)
        is_weight = array is not None and array.dtype in FLOATS
        if is_weight and array.shape == expected:
            continue
        theirs = "nothing" if array is None else f"{array.dtype} {array.shape}"
        advice = ""
        has_classes = hasattr(model, "with_num_classes")
        if (
            has_classes
            and name.startswith("predictions/")
            and array
            and expected
        ):
            count = array.shape[-1] if array.shape else 0
            advice = f"; see model.with_num_classes({count})"
        raise ValueError(
            f"{file.path} does not fit the model: the layer "
            f"{name.rpartition('/')[0]} has for {name.rpartition('/')[2]} "
            f"{theirs} in the file and {expected or 'nothing'} in the model"
            f"{advice}"
        )
