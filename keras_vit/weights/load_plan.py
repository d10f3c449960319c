"""Plan: all steps of a load, checked before any weight is assigned."""

import dataclasses
from typing import NamedTuple

import keras

from keras_vit.layers.resize import RESIZES
from keras_vit.models.config import ViTConfig
from keras_vit.models.tuning import reset_lora
from keras_vit.tables import pick
from keras_vit.weights.differences import (
    describe_images,
    describe_mismatches,
)
from keras_vit.weights.layer_shapes import HEAD_LAYERS, shapes_of
from keras_vit.weights.load_report import LoadReport
from keras_vit.weights.source import POSITION_TABLE, Source
from keras_vit.weights.stored_parts import parts_of, whole_shape
from keras_vit.weights.transfers import (
    PATCH_BIAS,
    Transfer,
    make_transfer,
    make_zeros,
)

HEADS = ("auto", "strict", "reset")


class Choices(NamedTuple):
    """Options of a load; see `from_checkpoint`.

    Args:
        head: See there.
        position_resize: See there.
        patch_resize: See there.
        renormalize: Whether the first layer is adapted if the images of the
            model are normalised in another way than those of the file.
    """

    head: str = "auto"
    position_resize: str | None = None
    patch_resize: str | None = None
    renormalize: bool = False

    def check(self):
        """Raise a ValueError for a name that is not known."""
        pick(dict.fromkeys(HEADS), self.head, "head")
        for name in ("position_resize", "patch_resize"):
            if getattr(self, name) is not None:
                pick(RESIZES, getattr(self, name), name)


class Plan(NamedTuple):
    """All steps of a load, checked before any weight is assigned.

    Args:
        source: The checkpoint.
        config: Configuration of the model.
        transfers: One transfer for each weight to load.
        report: The report, without the entries that only the load can add.
    """

    source: Source
    config: ViTConfig
    transfers: list[Transfer]
    report: LoadReport

    def carry_out(self, model: keras.Model) -> LoadReport:
        """Load the weights into `model` and return the report.

        Args:
            model: A model of `config`.
        """
        notes = list(self.report.notes)
        weights = {weight.path: weight for weight in model.weights}
        stacks = {}
        # Weights that share a stacked array follow each other, so each array
        # is read once and few are in memory at a time.
        for transfer in sorted(self.transfers, key=lambda row: str(row.names)):
            value = transfer.make(self._read(transfer.names, stacks))
            weights[transfer.path].assign(value)
            if transfer.path == "predictions/kernel" and not value.any():
                notes.append(_describe_zero_head(self.report.path, self.config))
            del value  # It would keep its stack while the next one is read.
        for path in self.report.reset:
            weights[path].assign(draw_initial_value(model, weights[path]))
        reset = (*self.report.reset, *reset_lora(model))
        return dataclasses.replace(self.report, reset=reset, notes=tuple(notes))

    def _read(self, names, stacks) -> list:
        """Return the arrays of a transfer; `stacks` caches stacked arrays."""
        for name in stacks.keys() - {ref[0] for ref in names if ref}:
            del stacks[name]
        checkpoint, arrays = self.source.checkpoint, []
        for ref in names:
            name, index = ref or (None, None)
            if name is None:
                arrays.append(None)
            elif index is None or (
                type(index) is int and checkpoint.entries[name].can_slice
            ):
                arrays.append(checkpoint.read(name, index))
            else:
                if name not in stacks:
                    stacks[name] = checkpoint.read(name)
                arrays.append(stacks[name][index])
        return arrays


def draw_initial_value(model: keras.Model, weight):
    """Return a new initial value for a weight of the head.

    The initializer of the layer draws it, as in a new model, so
    `keras.utils.set_random_seed` determines it.

    Args:
        model: The model.
        weight: The variable; its path is "LAYER/NAME".
    """
    layer_name, name = weight.path.split("/")
    layer = model.get_layer(layer_name)
    # A used initializer would draw the numbers of its first use again.
    initializer = getattr(layer, f"{name}_initializer").clone()
    return initializer(weight.shape, dtype=weight.dtype)


def _describe_zero_head(path, config):
    why = ""
    if config.num_classes == 21_843:
        why = (
            " The official ImageNet-21k files of 2020 were published without "
            "their heads (google-research/vision_transformer, issues 10, 32 "
            "and 252)."
        )
    return (
        f"The head of {path} is all zeros: every class gets the same score."
        f"{why} Fine-tune the head, or use the features before it."
    )


def make_plan(source: Source, config: ViTConfig, choices: Choices) -> Plan:
    """Return the plan to load `source` into the model of `config`.

    Args:
        source: The checkpoint.
        config: Configuration of the model.
        choices: The choices of the caller.

    Raises:
        ValueError: If weights do not fit. The message names all of them.
    """
    shapes = shapes_of(config)
    taken, reset = _choose_head(source, shapes, choices.head)
    problems, transfers = [], []
    for path, shape in shapes.items():
        if path in reset:
            continue
        if path not in taken and _is_zero_bias(source.config, path):
            transfers.append(make_zeros(path, shape))
            continue
        if path not in taken and path != PATCH_BIAS:
            name = _describe_name(source.layout, config, path)
            problems.append(f"{path} is missing in the file{name}")
            continue
        try:
            row = make_transfer(source, config, path, shape, *choices[1:])
            transfers.append(row)
        except ValueError as error:
            problems.append(str(error))
    left = [path for path in taken if path not in shapes]
    problems += [
        f"{source.stored(path)} has no place in the model" for path in left
    ]
    theirs, ours = source.config.num_heads, config.num_heads
    if theirs != ours:
        problems.append(f"it has {theirs} heads and the model {ours}")
    if problems:
        raise ValueError(
            f"{source.checkpoint.path} does not fit the model: "
            f"{'; '.join(problems)}.{_advise(source.config, config)}"
        )
    report = _report(source, config, transfers, reset)
    return Plan(source, config, transfers, report)


def _is_zero_bias(config, path):
    """Return whether a weight is a bias that a source computes without."""
    return config.qkv_bias == "none" and path.endswith("/attention/qkv/bias")


def _report(source, config, transfers, reset) -> LoadReport:
    used = dict.fromkeys(
        ref[0] for row in transfers for ref in row.names if ref is not None
    )
    every = {raw for raw, _ in source.names.values()}
    unused = sorted(every - set(used) - set(source.ignored))
    ignored = [*source.ignored, *unused]
    if source.num_prefix_rows > source.config.num_prefix_tokens:
        # The oldest files of big_vision have this row, but no class token.
        ignored.append(f"{source.stored(POSITION_TABLE)}, row 0")
    resized = tuple(text for row in transfers for text in row.resized)
    path, settings = source.checkpoint.path, source.preprocessing
    return LoadReport(
        path=path,
        layout=source.family,
        used=tuple(used),
        resized=resized,
        reset=tuple(reset),
        ignored=tuple(ignored),
        notes=(
            *describe_mismatches(source.config, config),
            *describe_images(
                path,
                settings,
                config,
                any(" normalisation " in text for text in resized),
            ),
        ),
        preprocessing=settings,
    )


def _choose_head(source, shapes, head):
    """Return the weights to load and those to initialise anew.

    The pre-logits layer and the classifier are loaded together, because a
    classifier is trained on the outputs of the layer before it.
    """
    wanted = {path: shapes[path] for path in shapes if _is_of_head(path)}
    held = {
        path: whole_shape(parts)
        for path, parts in source.parts.items()
        if _is_of_head(path)
    }
    body = [path for path in source.parts if path not in held]
    if head == "strict" and held != wanted:
        raise ValueError(
            f"{source.checkpoint.path} does not fit the model with "
            f"`head='strict'`: its head is {held or 'missing'}, that of the "
            f"model is {wanted or 'missing'}."
        )
    if head == "reset":
        return body, list(wanted)
    if held == wanted:
        return [*body, *wanted], []
    # Another number of classes, or none: the pre-logits layer stays.
    kept, held_before = (
        {path: shape for path, shape in shapes.items() if "pre_logits" in path}
        for shapes in (wanted, held)
    )
    kept = list(kept) if kept == held_before else []
    return [*body, *kept], [path for path in wanted if path not in kept]


def _is_of_head(path):
    return path.split("/")[0] in HEAD_LAYERS


def _describe_name(layout, config, path):
    """Return the name of a weight in the family in brackets, if it exists."""
    try:
        parts = parts_of(layout, config)[path]
    except ValueError:
        return ""
    return f" ({', '.join(part.name for part in parts)})"


def _advise(theirs, ours):
    """Return the fields of a model that fits the weights."""
    different = [
        f"{name}={getattr(theirs, name)!r}"
        for name in STRUCTURE
        if getattr(theirs, name) != getattr(ours, name)
    ]
    if not different:
        return ""
    return f" The model it holds has {', '.join(different)}."


# Fields of ViTConfig that determine which weights exist.
STRUCTURE = (
    "width",
    "depth",
    "mlp_dim",
    "num_heads",
    "stem_stages",
    "use_class_token",
    "position_embedding",
    "pooling",
    "use_pooling_norm",
)
