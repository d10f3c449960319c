"""Reading a checkpoint: plan, check, then assign."""

import dataclasses
import math
import os
import warnings
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.layers.dtypes import is_quantized
from keras_vit.models.config import ViTConfig, check_fields
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.tables import pick
from keras_vit.weights.containers import open_checkpoint
from keras_vit.weights.inference import Source, understand
from keras_vit.weights.layouts import layers_of, parts_of
from keras_vit.weights.pretrained import locate
from keras_vit.weights.resize import (
    RESIZES,
    adapt_channels,
    resize_patch_kernel,
    resize_positions,
)

HEADS = ("auto", "strict", "reset")
POSITIONS = "position_embedding/embedding"
PATCHES = "patch_encoder/kernel"
ROOT = "stem/root_conv/kernel"
HEAD_LAYERS = ("pre_logits", "predictions")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What became of a checkpoint and of the weights of a model.

    Args:
        path: The file or folder that was read.
        layout: Its family, a key of LAYOUTS.
        used: Names in the file that were loaded.
        resized: What was loaded in another size, and how.
        reset: Weights of the model that start anew.
        ignored: Names in the file that were left.
        notes: What makes the model answer otherwise than the source, and the
            argument that mends it.
    """

    path: str
    layout: str
    used: tuple[str, ...]
    resized: tuple[str, ...]
    reset: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self):
        lines = [f"{self.path} ({self.layout}): {len(self.used)} arrays used"]
        for what in ("resized", "reset", "ignored", "notes"):
            rows = getattr(self, what)
            if rows:
                lines.append(f"{what}: {', '.join(rows)}")
        return "\n".join(lines)


def from_checkpoint(
    path_or_name: str | os.PathLike,
    *,
    image_size: tuple[int, int] | int | None = None,
    source_image_size: tuple[int, int] | int | None = None,
    classes: int | None = None,
    num_heads: int | None = None,
    classifier_activation: str | None = None,
    dtype=None,
    head: str = "auto",
    position_resize: str = "official",
    patch_resize: str | None = None,
    name: str = "vision_transformer",
    **overrides,
) -> VisionTransformer:
    """Build the model that a checkpoint holds, with its weights.

    The family (official, big_vision, timm, Hugging Face, keras-hub,
    vit-keras) and the whole configuration are read off the names and shapes
    in the file. Without changes the model answers as the source does.

    Args:
        path_or_name: A `.npz`, `.safetensors` or `.h5` file, a folder as
            Hugging Face, timm or keras-hub write it, a URL, or a name of
            `PRETRAINED`.
        image_size: (height, width) in pixels, or one number for a square;
            default as in the file. Positions are resized to it.
        source_image_size: (height, width) of the images of the file, for one
            whose positions may be those of several sizes. Default is what the
            file or the JSON beside it says, a square, or `image_size`.
        classes: Number of classes; another number than the file's makes a
            new head, 0 none. Default as in the file.
        num_heads: Number of attention heads, for a file that does not say.
        classifier_activation: Of the head, such as "softmax"; None for
            logits.
        dtype: Type policy of the layers, such as "mixed_bfloat16".
        head: "auto" takes the head of the file where it fits and starts anew
            where it does not, "strict" fails where it does not, "reset"
            always starts anew.
        position_resize: A key of RESIZES: "official", "bilinear", "bicubic"
            (Hugging Face) or "bicubic_antialias" (timm).
        patch_resize: A key of RESIZES, to load patches of another size than
            `patch_size=` says.
        name: Name of the model.
        **overrides: Fields of `ViTConfig`, such as `dropout_rate`.

    Returns:
        A VisionTransformer; its `load_report` says what was loaded.

    Raises:
        ValueError: If the file is damaged, of no known family, incomplete, or
            leaves open what an argument must say. Names the file and all that
            does not fit.
    """
    _check_choices(head, position_resize, patch_resize)
    _check_overrides(overrides)

    def configure(found):
        if num_heads not in (None, found.num_heads):
            raise ValueError(
                f"{path_or_name} has {found.num_heads} heads. "
                f"Received: num_heads={num_heads}"
            )
        changes = {
            "image_size": found.image_size
            if image_size is None
            else image_size,
            "num_classes": found.num_classes if classes is None else classes,
            "classifier_activation": classifier_activation,
        }
        return dataclasses.replace(found, **changes, **overrides)

    def build(config):
        return VisionTransformer(config, dtype=dtype, name=name)

    model = build_and_load(
        path_or_name,
        configure,
        build,
        known=(num_heads, image_size, source_image_size),
        choices=(head, position_resize, patch_resize),
    )
    # A choice that was made by name needs no warning.
    warn(model.load_report, stacklevel=2, without=set(overrides))
    return model


def build_and_load(
    path_or_name,
    configure: Callable[[ViTConfig], ViTConfig],
    build: Callable[[ViTConfig], keras.Model],
    *,
    known: tuple = (None, None, None),
    choices: tuple = ("auto", "official", None),
):
    """Return the model built for a checkpoint, loaded; `load_report` says how.

    Args:
        path_or_name: As in `from_checkpoint`.
        configure: Makes the configuration of the model of that of the file.
        build: Makes the model.
        known: The arguments of `understand`: `num_heads`, `image_size` and
            `source_image_size`.
        choices: `head`, `position_resize` and `patch_resize`.
    """
    with open_checkpoint(locate(path_or_name)) as checkpoint:
        source = understand(checkpoint, *known)
        plan = make_plan(source, configure(source.config), *choices)
        checkpoint.verify(plan.report.used)
        model = build(plan.config)
        report = plan.assign(model.weights)
    return _remember(model, source, report)


def load_checkpoint(
    model: VisionTransformer,
    path: str | os.PathLike,
    head: str = "auto",
    position_resize: str = "official",
    patch_resize: str | None = None,
    source_image_size: tuple[int, int] | int | None = None,
) -> LoadReport:
    """Load a checkpoint of any family into a model.

    Positions are resized to the grid of the model, the first kernel is
    adapted to its input channels. All is planned and checked first: if
    anything is wrong, the model stays as it was.

    Args:
        model: Takes the weights.
        path: As `path_or_name` of `from_checkpoint`.
        head: "auto" takes the head of the file where it fits and starts anew
            where it does not, "strict" fails where it does not, "reset"
            always starts anew.
        position_resize: A key of RESIZES: "official", "bilinear", "bicubic"
            (Hugging Face) or "bicubic_antialias" (timm).
        patch_resize: A key of RESIZES, to load patches of another size;
            "bilinear" is FlexiViT's rule.
        source_image_size: (height, width) of the images of the file, for one
            whose positions may be those of several sizes.

    Returns:
        What was used, resized, reset and ignored. Differences between the
        source and the model that change the answers are warned of as well.

    Raises:
        ValueError: If the file or the model does not fit; names all of it.
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            "`model` must be a VisionTransformer. "
            f"Received: {type(model).__name__}"
        )
    if is_quantized(model):
        raise ValueError(
            "`model` is quantised; load the checkpoint before it is. "
            f"Received: model={model.name!r}"
        )
    _check_choices(head, position_resize, patch_resize)
    with open_checkpoint(locate(path)) as checkpoint:
        config = model.config
        source = understand(
            checkpoint, config.num_heads, config.image_size, source_image_size
        )
        plan = make_plan(source, config, head, position_resize, patch_resize)
        checkpoint.verify(plan.report.used)
        report = plan.assign(model.weights)
    warn(report, stacklevel=2)
    _remember(model, source, report)
    return report


def _remember(model, source, report):
    """Let the model say what it was loaded from, and be written back so."""
    model.load_report = report
    model.checkpoint_spelling = f"{source.family}/{source.spelling}"
    return model


def _check_choices(head, position_resize, patch_resize):
    pick(dict.fromkeys(HEADS), head, "head")
    pick(RESIZES, position_resize, "position_resize")
    if patch_resize is not None:
        pick(RESIZES, patch_resize, "patch_resize")


def _check_overrides(overrides):
    renamed = {
        "num_classes": "classes",
        "include_top": "classes",
        "input_shape": "image_size",
    }
    check_fields(overrides, renamed)


class Step(NamedTuple):
    """How one weight of the model is made from the file.

    Args:
        path: Of the weight.
        names: In the file, with the number of the slice or None; a name is
            None where the file leaves out a bias, which is zero.
        make: Makes the weight from the arrays.
    """

    path: str
    names: tuple
    make: Callable[[list], np.ndarray]


class Plan(NamedTuple):
    """Everything a load will do, checked, before it is done.

    Args:
        source: The checkpoint.
        config: Of the model.
        steps: One for each weight that is loaded.
        shapes: Of all weights of the model.
        report: What will be said of it.
    """

    source: Source
    config: ViTConfig
    steps: list[Step]
    shapes: dict[str, tuple]
    report: LoadReport

    def assign(self, weights) -> LoadReport:
        """Read the arrays, give them to `weights`, the model's, and report."""
        notes = list(self.report.notes)
        by_path = {weight.path: weight for weight in weights}
        stacks = {}
        # Weights that share stacked arrays come one after the other, so that
        # each array is read once and few are held at a time.
        for step in sorted(self.steps, key=lambda step: str(step.names)):
            value = step.make(self._read(step.names, stacks))
            by_path[step.path].assign(value)
            if step.path == "predictions/kernel" and not value.any():
                path, classes = self.report.path, self.config.num_classes
                notes.append(_about_zero_head(path, classes))
            del value  # Or it would hold its stack while the next is read.
        for path in self.report.reset:
            by_path[path].assign(self.fresh(path))
        return dataclasses.replace(self.report, notes=tuple(notes))

    def _read(self, names, stacks) -> list:
        """Return the arrays of a step; `stacks` keeps what others share."""
        for name in stacks.keys() - {ref[0] for ref in names if ref}:
            del stacks[name]
        checkpoint, arrays = self.source.checkpoint, []
        for ref in names:
            name, index = ref or (None, None)
            if name is None:
                arrays.append(None)
            elif index is None or checkpoint.entries[name].can_slice:
                arrays.append(checkpoint.read(name, index))
            else:
                if name not in stacks:
                    stacks[name] = checkpoint.read(name)
                arrays.append(stacks[name][index])
        return arrays

    def fresh(self, path) -> np.ndarray:
        """Return the initial value of a weight of the head."""
        shape = self.shapes[path]
        if path == "predictions/bias":
            return np.full(shape, self.config.head_bias, "float32")
        if path == "pre_logits/kernel":
            # LeCun normal, as a new model has it.
            draws = np.random.default_rng().standard_normal(shape)
            return (draws / math.sqrt(shape[0])).astype("float32")
        return np.zeros(shape, "float32")


def warn(report: LoadReport, stacklevel: int, without=()):
    """Warn of what makes a model answer otherwise than one expects.

    Args:
        report: Of the load.
        stacklevel: Frames up to the caller who is to read it.
        without: Fields that the caller has chosen knowingly.
    """
    for note in report.notes:
        if not any(f"`{name}=" in note for name in without):
            warnings.warn(note, stacklevel=stacklevel + 1)


def _about_zero_head(path, num_classes):
    why = ""
    if num_classes == 21_843:
        why = (
            " The official ImageNet-21k files of 2020 were published without "
            "their heads (google-research/vision_transformer, issues 10, 32 "
            "and 252)."
        )
    return (
        f"The head of {path} is all zeros: every class gets the same score."
        f"{why} Fine-tune it, or take the features without it."
    )


def make_plan(
    source: Source,
    config: ViTConfig,
    head: str,
    position_resize: str,
    patch_resize: str | None,
) -> Plan:
    """Return how the model of `config` is loaded from `source`.

    Args:
        source: What the file holds.
        config: Of the model that takes it.
        head: "auto", "strict" or "reset".
        position_resize: A key of RESIZES.
        patch_resize: A key of RESIZES, or None to refuse other patches.

    Raises:
        ValueError: If the weights do not fit; names all of them.
    """
    shapes = {
        f"{layer.path}/{weight}": shape
        for layer in layers_of(config)
        for weight, shape in layer.shapes.items()
    }
    taken, reset = _choose_head(source, shapes, head)
    problems, steps, resized = [], [], []
    for path, shape in shapes.items():
        if path in reset:
            continue
        if path not in taken:
            name = _name_in(source.layout, config, path)
            problems.append(f"{path} is missing in the file{name}")
            continue
        step = _step(source, config, path, shape, position_resize, patch_resize)
        if isinstance(step, str):
            problems.append(step)
            continue
        steps.append(step[0])
        resized += step[1:]
    left = [path for path in taken if path not in shapes]
    problems += [
        f"{_stored(source, path)} has no place in the model" for path in left
    ]
    if source.config.num_heads != config.num_heads:
        problems.append(
            f"it has {source.config.num_heads} heads and the model "
            f"{config.num_heads}"
        )
    if problems:
        raise ValueError(
            f"{source.checkpoint.path} does not fit the model: "
            f"{'; '.join(problems)}.{_advice(source.config, config)}"
        )
    used = dict.fromkeys(
        ref[0] for step in steps for ref in step.names if ref is not None
    )
    every = {raw for raw, _ in source.names.values()}
    ignored = [
        *source.ignored,
        *sorted(every - set(used) - set(source.ignored)),
    ]
    if source.has_class_slot and not source.config.use_class_token:
        # What the oldest files of big_vision keep of a token they lost.
        ignored.append(f"{_stored(source, POSITIONS)}, row 0")
    report = LoadReport(
        path=source.checkpoint.path,
        layout=source.family,
        used=tuple(used),
        resized=tuple(resized),
        reset=tuple(reset),
        ignored=tuple(ignored),
        notes=tuple(_notes(source.config, config)),
    )
    return Plan(source, config, steps, shapes, report)


def _choose_head(source, shapes, head):
    """Return the weights taken of the file and those that start anew.

    The pre-logits layer and the classifier belong together: a classifier was
    trained on what is before it.
    """
    parts = source.parts
    of_head = lambda path: path.split("/")[0] in HEAD_LAYERS  # noqa: E731
    body = [path for path in parts if not of_head(path)]
    wanted = {path: shape for path, shape in shapes.items() if of_head(path)}
    held = {
        path: (*rows[0].shape[:-1], rows[0].shape[-1] * len(rows))
        for path, rows in parts.items()
        if of_head(path)
    }
    before = {p: s for p, s in wanted.items() if p.startswith("pre_logits")}
    held_before = {p: s for p, s in held.items() if p.startswith("pre_logits")}
    if head == "strict" and held != wanted:
        raise ValueError(
            f"{source.checkpoint.path} does not fit the model with "
            f"`head='strict'`: its head is {held or 'missing'}, that of the "
            f"model is {wanted or 'missing'}."
        )
    if head == "reset":
        return body, [path for path in wanted]
    if held == wanted:
        return [*body, *wanted], []
    # Another number of classes, or none: what leads to the head stays.
    kept = list(before) if before == held_before else []
    return [*body, *kept], [path for path in wanted if path not in kept]


def _name_in(layout, config, path):
    """Return what the family would call a weight, if it has it at all."""
    try:
        parts = parts_of(layout, config)[path]
    except ValueError:
        return ""
    return f" ({', '.join(part.name for part in parts)})"


def _stored(source, path):
    names = [
        source.names[p.name][0]
        for p in source.parts[path]
        if p.name in source.names
    ]
    return ", ".join(names) or path


def _step(source, config, path, shape, position_resize, patch_resize):
    """Return the step of a weight and what is resized, or what is wrong."""
    parts = source.parts[path]
    refs = tuple(source.names.get(part.name) for part in parts)
    old = (*parts[0].shape[:-1], parts[0].shape[-1] * len(parts))
    if path == POSITIONS:
        return _position_step(source, config, path, refs, position_resize)
    stages, notes = [], []
    if path in (PATCHES, ROOT):
        first = ROOT if config.stem_stages is not None else PATCHES
        if path == first and old[2] != shape[2]:
            stages.append(lambda x: adapt_channels(x, shape[2]))
            notes.append(f"{path}: {old[2]} input channels to {shape[2]}")
            old = (*old[:2], shape[2], old[3])
        if old[:2] != shape[:2]:
            if patch_resize is None:
                return (
                    f"{_stored(source, path)} has patches of {old[0]}x{old[1]} "
                    f"and the model of {shape[0]}x{shape[1]}; pass "
                    "`patch_resize=` to resize them"
                )
            stages.append(
                lambda x: resize_patch_kernel(x, shape[0], patch_resize)
            )
            notes.append(
                f"{path}: {old[0]}x{old[1]} pixels to {shape[0]}x{shape[1]} "
                f"({patch_resize})"
            )
            old = (*shape[:2], *old[2:])
    if old != shape:
        return f"{_stored(source, path)} is {old} and the model has {shape}"

    def make(arrays):
        pieces = [
            np.zeros(part.shape, "float32")
            if array is None
            else _in_rows(part.form.to_ours(array, part.shape))
            for part, array in zip(parts, arrays)
        ]
        x = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=-1)
        for stage in stages:
            x = stage(x)
        return x

    return (Step(path, refs, make), *notes)


def _in_rows(array):
    """Return a transposed matrix in row order, copied block by block.

    Twice as fast as in one go: a block fits into the cache.
    """
    if array.ndim != 2 or array.flags.c_contiguous:
        return array
    copy = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], 64):
        block = slice(start, start + 64)
        copy[:, block] = array[:, block]
    return copy


def _position_step(source, config, path, refs, method):
    old_grid, new_grid = source.config.grid_size, config.grid_size
    num_patches = math.prod(old_grid)
    if source.config.width != config.width:
        return (
            f"{_stored(source, path)} has the width {source.config.width} and "
            f"the model {config.width}"
        )

    def make(arrays):
        table = arrays[0].reshape(-1, config.width)
        grid = table[-num_patches:]
        if config.use_class_token:
            # A family that adds positions before the class token has no row
            # for it: a zero is added then.
            slot = (
                table[:1] if source.has_class_slot else np.zeros_like(grid[:1])
            )
            grid = np.concatenate([slot, grid])
        return resize_positions(grid, old_grid, new_grid, method)

    notes = []
    if old_grid != new_grid:
        old, new = ("x".join(map(str, grid)) for grid in (old_grid, new_grid))
        notes.append(f"{path}: {old} patches to {new} ({method})")
    return (Step(path, refs, make), *notes)


def _advice(source, config):
    """Return how a model must be built for what the source has."""
    fields = (
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
    different = [
        f"{name}={getattr(source, name)!r}"
        for name in fields
        if getattr(source, name) != getattr(config, name)
    ]
    if not different:
        return ""
    return f" The model it holds has {', '.join(different)}."


def _notes(source, config):
    """Yield what makes a model answer otherwise than the source."""
    for field, effect in (
        ("gelu", "answers differ by about 2e-4"),
        ("layer_norm_epsilon", "answers differ slightly"),
        ("stem_epsilons", "answers differ by about 2e-4"),
        ("pooling", "the head reads something else"),
    ):
        theirs, ours = getattr(source, field), getattr(config, field)
        if theirs == ours or (field == "pooling" and not config.num_classes):
            continue
        yield (
            f"The source computes with {field}={theirs!r}, the model with "
            f"{field}={ours!r}: {effect}. Build the model with "
            f"`{field}={theirs!r}` to mend it."
        )
