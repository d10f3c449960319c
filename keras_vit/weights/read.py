"""Reading checkpoints: from_checkpoint, text_from_checkpoint, load_checkpoint.

A file is opened, `find` tells which model it contains, and a Plan lists how
each weight is computed from its arrays. Everything is checked before the first
weight is assigned: after an error, an existing model is unchanged.
"""

import dataclasses
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.arguments import as_whole
from keras_vit.layers.base import refuse_quantized
from keras_vit.layers.resize import (
    RESIZES,
    adapt_channels,
    resize_distances,
    resize_patch_kernel,
    resize_positions,
)
from keras_vit.models.config import ViTConfig, check_fields
from keras_vit.models.text import TextTransformer
from keras_vit.models.vit import VisionTransformer, check_vision_transformer
from keras_vit.preprocessing.description import Preprocessing
from keras_vit.tables import check_name
from keras_vit.weights.containers import File, open_file
from keras_vit.weights.families.family import (
    HEAD_LAYERS,
    LATER_FIELDS,
    effective_fields,
    shapes_of,
)
from keras_vit.weights.families.huggingface_dense import encoder_part
from keras_vit.weights.families.inference import (
    PATCHES,
    POSITION_TABLE,
    PUBLISHED,
    Known,
)
from keras_vit.weights.find import Found, find, find_text
from keras_vit.weights.hub import locate
from keras_vit.weights.images import change_config

HEADS = ("auto", "strict", "reset")
PATCH_BIAS, ROOT = "patch_encoder/bias", "stem/root_conv/kernel"
OF_2020 = (
    " The official ImageNet-21k files of 2020 were published without their "
    "heads (google-research/vision_transformer, issues 10, 32 and 252)."
)


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of loading a checkpoint into a model.

    Args:
        path: The file or folder that was read.
        layout: Its family, a key of LAYOUTS.
        used: Names of the arrays in the file that were read.
        resized: Weights that were resized, with the sizes and the rule.
        reset: Weights of the model that were initialised anew.
        ignored: Names of the arrays in the file that were not loaded.
        notes: Reasons why the outputs may differ from those of the source,
            each with the argument to change.
        preprocessing: How the model of the file reads images; None if it is
            unknown.
    """

    path: str
    layout: str
    used: tuple[str, ...]
    resized: tuple[str, ...]
    reset: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    preprocessing: Preprocessing | None = None

    def with_reset(self, paths: Iterable[str]) -> "LoadReport":
        """Return the report of a model with new weights at further paths."""
        new = dict.fromkeys([*self.reset, *paths])
        return dataclasses.replace(self, reset=tuple(new))

    def __str__(self):
        lines = [f"{self.path} ({self.layout}): {len(self.used)} arrays used"]
        for field in ("resized", "reset", "ignored", "notes"):
            if rows := getattr(self, field):
                lines.append(f"{field}: {', '.join(rows)}")
        return "\n".join(lines)


def warn(report: LoadReport, stacklevel: int, without=()):
    """Give a warning for each note of a report.

    `stacklevel` counts the frames from here to the caller that the warning
    points at; notes on the arguments `without`, which it passed, are skipped.
    """
    for note in report.notes:
        if not any(f"`{name}=" in note for name in without):
            warnings.warn(note, stacklevel=stacklevel + 1)


def from_checkpoint(
    path_or_name: str | os.PathLike,
    *,
    image_size: tuple[int, int] | int | None = None,
    source_image_size: tuple[int, int] | int | None = None,
    classes: int | None = None,
    num_heads: int | str | None = None,
    architecture: str | None = None,
    classifier_activation: str | None = None,
    dtype=None,
    head: str = "auto",
    position_resize: str | None = None,
    patch_resize: str | None = None,
    name: str = "vision_transformer",
    **overrides,
) -> VisionTransformer:
    """Build the model of a checkpoint and load its weights.

    The names and shapes in the file determine its family, a key of LAYOUTS,
    and the whole configuration, as far as it is not in the JSON beside the
    file. Without further arguments, the model computes the same
    outputs as the source.

    Args:
        path_or_name: A `.npz`, `.safetensors`, `.h5` or `.msgpack` file, a
            folder as Hugging Face, timm or keras-hub write it, a URL, a name
            of `PRETRAINED` or `HUB_MODELS`, "hf://owner/name" or "timm/name".
        image_size: (height, width) in pixels, or one number for a square. The
            position table is resized to it. Default: that of the file.
        source_image_size: (height, width) of the images of the file, if its
            positions fit several sizes. Default: the size in the file or in
            the JSON beside it, a square, or `image_size`.
        classes: Number of classes; 0 for a model without a head. If it differs
            from that of the file, the head is new. Default: that of the file.
        num_heads: Number of attention heads, if the file does not determine
            it; "published" for that of the published model of the same size,
            with a warning.
        architecture: Name of the architecture in the code of the family, such
            as timm's "vit_base_patch16_clip_224", for a file without its
            `config.json`; a tag may follow, such as ".openai". It tells what
            names and shapes do not.
        classifier_activation: Activation of the head, such as "softmax";
            "linear" for logits. Default: that which the file states, or
            logits.
        dtype: Dtype policy of the layers, such as "mixed_bfloat16".
        head: "auto" loads the head of the file if it fits, and otherwise
            creates a new one; "strict" raises an error if it does not fit;
            "reset" always creates a new head.
        position_resize: A key of RESIZES, such as "official", "bicubic"
            (Hugging Face) or "bicubic_antialias" (timm). Default: the rule of
            the file's family.
        patch_resize: A key of RESIZES, to resize the patch kernel if
            `patch_size` differs from that of the file.
        name: Name of the model.
        **overrides: Fields of `ViTConfig`, such as `dropout_rate`.

    Returns:
        A VisionTransformer with a `load_report`, see `LoadReport`.

    Raises:
        ValueError: If the file is damaged, incomplete or of no known family,
            or if it leaves a setting open that needs an argument. The message
            names the file and every array that does not fit.
        ConnectionError: If a download fails.
    """
    check_fields(overrides, RENAMED_FIELDS)
    fields = dict(overrides)
    if classes is not None:
        fields["num_classes"] = as_whole(classes, "classes", 0)
    known = Known(
        num_heads, image_size, source_image_size, architecture, fields
    )
    changes = {
        "image_size": image_size,
        "classifier_activation": classifier_activation,
        "position_resize": position_resize,
    }
    changes = {key: v for key, v in changes.items() if v is not None} | fields

    def check(found):
        if num_heads not in (None, PUBLISHED, found.num_heads):
            raise ValueError(
                f"{path_or_name} has {found.num_heads} heads. "
                f"Received: num_heads={num_heads}"
            )

    def make(config):
        if config.classifier_activation == "linear":
            config = dataclasses.replace(config, classifier_activation=None)
        return VisionTransformer(config, dtype=dtype, name=name)

    rules = head, position_resize, patch_resize
    model = build_from(path_or_name, known, changes, check, make, rules)
    # Notes on fields that the caller passed are not repeated.
    warn(model.load_report, stacklevel=2, without=set(overrides))
    return model


def build_from(
    source: str | os.PathLike,
    known: Known,
    changes: Mapping,
    check: Callable[[ViTConfig], None],
    make: Callable[[ViTConfig], keras.Model],
    rules: Sequence = (),
) -> keras.Model:
    """Return a new model with the weights of a checkpoint.

    Args:
        source: See `from_checkpoint`.
        known: What is known of the file.
        changes: Fields of `ViTConfig` in which the model differs from it.
        check: Raises a ValueError if the configuration of the file is wrong.
        make: Builds the model.
        rules: `head`, `position_resize` and `patch_resize`.
    """
    with open_file(locate(source)) as file:
        found = find(file, known)
        check(found.config)
        config = change_config(found.config, changes)
        plan = Plan(found, config, *rules, is_new=True)
        model = make(config)
        plan.load(model, found.notes)
    return model


def read_preprocessing(
    path_or_name: str | os.PathLike,
    *,
    num_heads: int | str | None = None,
    image_size: tuple[int, int] | int | None = None,
    architecture: str | None = None,
) -> Preprocessing:
    """Return the preprocessing of a checkpoint's model; no weight is read.

    That of the ViT of 2021, `Preprocessing("vit")`, if the file does not tell;
    the `preprocessing` of a `LoadReport` is None then.

    Args:
        path_or_name: See `from_checkpoint`, as for the other arguments.
        num_heads: Number of attention heads.
        image_size: (height, width) in pixels.
        architecture: Name of the architecture.

    Raises:
        ValueError, ConnectionError: As `from_checkpoint` does.
    """
    known = Known(num_heads, image_size, architecture=architecture)
    with open_file(locate(path_or_name)) as file:
        settings = find(encoder_part(file), known).config.preprocessing
    for note in file.notes:
        warnings.warn(note, stacklevel=2)
    return settings


def load_checkpoint(
    model: VisionTransformer,
    path: str | os.PathLike,
    head: str = "auto",
    position_resize: str | None = None,
    patch_resize: str | None = None,
    source_image_size: tuple[int, int] | int | None = None,
) -> LoadReport:
    """Load a checkpoint of any family into a model.

    The position table is resized to the grid of the model, and the first
    kernel is adapted to its input channels. LoRA updates are reset to zero.
    Everything is checked first: after an error, the model is unchanged.

    Args:
        model: The model to load the weights into.
        path: See `path_or_name` of `from_checkpoint`, as for the others.
        head: What is done with the head.
        position_resize: A key of RESIZES.
        patch_resize: A key of RESIZES.
        source_image_size: (height, width) of the images of the file.

    Returns:
        A report of the arrays that were used, resized, reset and ignored. If
        the source and the model compute different outputs, a warning states
        the difference.

    Raises:
        ValueError: If the file does not fit the model. The message names every
            array that does not fit.
        ConnectionError: If a download fails.
    """
    check_vision_transformer(model)
    refuse_quantized(model, "load the checkpoint first, then quantise")
    config = model.config
    known = Known(
        config.num_heads,
        config.image_size,
        source_image_size,
        fields={"num_classes": config.num_classes},
    )
    with open_file(locate(path)) as file:
        found = find(file, known)
        plan = Plan(found, config, head, position_resize, patch_resize)
        file.verify(plan.used)
        # Nothing else has to be assumed.
        report = plan.load(model, file.notes)
    warn(report, stacklevel=2)
    return report


def text_from_checkpoint(
    path_or_name: str | os.PathLike,
    *,
    dtype=None,
    name: str = "text_transformer",
) -> TextTransformer:
    """Build the text tower of a checkpoint and load its weights.

    It is beside an image tower, which `from_checkpoint` reads. The names of the
    arrays and the JSON beside them determine the whole configuration.

    Args:
        path_or_name: See `from_checkpoint`: a folder or a file of CLIP,
            MetaCLIP 2, SigLIP or SigLIP 2 as transformers or OpenCLIP write it,
            with its JSON.
        dtype: Dtype policy of the layers, such as "mixed_bfloat16".
        name: Name of the model.

    Returns:
        A TextTransformer with a `load_report`, see `LoadReport`.

    Raises:
        ValueError: If the file is damaged, incomplete or has no such tower. The
            message names the file and every array that does not fit.
        ConnectionError: If a download fails.
    """
    with open_file(locate(path_or_name)) as file:
        model = load_text(file, dtype, name)
    warn(model.load_report, stacklevel=2)
    return model


def load_text(
    file: File, dtype=None, name: str = "text_transformer"
) -> TextTransformer:
    """Return the text tower in a file, see `text_from_checkpoint`."""
    found, used = find_text(file), []
    model = TextTransformer(found.config, dtype=dtype, name=name)
    for weight in model.weights:
        parts = found.parts[weight.path]
        places = [found.places[part.name] for part in parts]
        weight.assign(join_parts(parts, [file.read(*p) for p in places]))
        used += [raw for raw, _ in places]
    model.load_report = LoadReport(
        file.path, found.key, tuple(used), (), (), found.ignored, found.notes
    )
    return model


# ----------------------------------------------------------------------- plan


class Step(NamedTuple):
    """How one weight of a model is computed from arrays of a file.

    Args:
        path: Path of the weight.
        places: The name in the file and the index of each array, see `Found`;
            None in place of both for a bias of zeros that the file lacks.
        make: Computes the weight from the arrays.
        resized: What is resized, for the report.
    """

    path: str
    places: tuple
    make: Callable[[list], np.ndarray]
    resized: tuple[str, ...] = ()


class Plan:
    """All steps of a load, checked before any weight is assigned.

    Args:
        found: What the file contains.
        config: Configuration of the model.
        head, position_resize, patch_resize: See `from_checkpoint`.
        is_new: Whether the model is new; its first layer is then adapted if
            its images are normalised in another way than those of the file.

    Raises:
        ValueError: If weights do not fit. The message names all of them.
    """

    def __init__(
        self,
        found: Found,
        config: ViTConfig,
        head: str = "auto",
        position_resize: str | None = None,
        patch_resize: str | None = None,
        is_new: bool = False,
    ):
        check_name(HEADS, head, "head")
        for name, rule in (
            ("position_resize", position_resize),
            ("patch_resize", patch_resize),
        ):
            if rule is not None:
                check_name(RESIZES, rule, name)
        self.found, self.config = found, config
        self.position_resize = position_resize or found.config.position_resize
        self.patch_resize = patch_resize
        # The shape and the arrays in the file of each weight.
        self.stored = {
            path: (*parts[0].shape[:-1], parts[0].shape[-1] * len(parts))
            for path, parts in found.parts.items()
        }
        self.places = {
            path: tuple(found.places.get(part.name) for part in parts)
            for path, parts in found.parts.items()
        }
        theirs, ours = found.preprocessing, config.preprocessing
        # A stem pads its images with zeros and standardises its kernels, and a
        # projection without a bias cannot add a constant. A source may lack
        # the bias.
        self.is_renormalized = (
            is_new
            and theirs is not None
            and theirs.normalization != ours.normalization
            and config.stem_stages is None
            and config.use_patch_bias
            and len(ours.mean) in (1, found.config.channels)
        )
        shapes = shapes_of(config)
        self.reset = self._new_head(shapes, head)
        self.steps, problems = [], []
        for path in (path for path in shapes if path not in self.reset):
            try:
                self.steps.append(self._step(path, shapes[path]))
            except ValueError as error:
                problems.append(str(error))
        problems += [
            f"{found.stored(path)} has no place in the model"
            for path in found.parts
            if path not in shapes and not path.startswith(HEAD_LAYERS)
        ]
        heads = found.config.num_heads, config.num_heads
        if heads[0] != heads[1]:
            problems.append(f"it has {heads[0]} heads and the model {heads[1]}")
        if problems:
            different = [
                f"{name}={getattr(found.config, name)!r}"
                for name in STRUCTURE
                if getattr(found.config, name) != getattr(config, name)
            ]
            advice = f" The model it holds has {', '.join(different)}."
            raise ValueError(
                f"{found.file.path} does not fit the model: "
                f"{'; '.join(problems)}.{advice if different else ''}"
            )
        places = (place for step in self.steps for place in step.places)
        # The names in the file of the arrays to read.
        self.used = tuple(dict.fromkeys(place[0] for place in places if place))

    def load(self, model: keras.Model, notes: Iterable[str] = ()) -> LoadReport:
        """Load the weights; return the report, with `notes` before its own.

        The model keeps the report and the dialect of the file.
        """
        found, file, stacks = self.found, self.found.file, {}
        notes = [*notes, *self._differences()]
        weights = {weight.path: weight for weight in model.weights}
        has_scores = []  # Of each kernel of the head that is loaded.
        # Weights that share a stacked array follow each other, so each array
        # is read once and few are in memory at a time.
        for step in sorted(self.steps, key=lambda row: str(row.places)):
            names = {place[0] for place in step.places if place}
            for name in stacks.keys() - names:
                del stacks[name]
            arrays = []
            for name, index in (place or (None, None) for place in step.places):
                if name is None:
                    arrays.append(None)
                elif index is None or (
                    type(index) is int and file.arrays[name].can_slice
                ):
                    arrays.append(file.read(name, index))
                else:
                    if name not in stacks:
                        stacks[name] = file.read(name)
                    arrays.append(stacks[name][index])
            value = step.make(arrays)
            del arrays  # They are as large as the weight.
            weights[step.path].assign(value)
            if re.fullmatch(r"predictions/(.+/)?kernel", step.path):
                has_scores.append(value.any())
            del value  # It would keep its stack while the next one is read.
        if has_scores and not any(has_scores):
            why = OF_2020 if self.config.num_classes == 21_843 else ""
            notes.append(
                f"The head of {found.file.path} is all zeros: every class "
                f"gets the same score.{why} Fine-tune the head, or use the "
                "features before it."
            )
        for path in self.reset:
            first, *inner, name = path.split("/")
            layer = model.get_layer(first)
            for part in inner:  # The two heads of a distilled model.
                layer = getattr(layer, part)
            initializer = getattr(layer, f"{name}_initializer")
            # A used initializer would draw the numbers of its first use again.
            draw, weight = initializer.clone(), weights[path]
            weight.assign(draw(weight.shape, dtype=weight.dtype))
        # Low-rank updates become zero; their factors A stay as they are.
        factors = [w for w in model.weights if w.name == "lora_kernel_b"]
        for factor in factors:
            factor.assign(np.zeros(factor.shape, "float32"))
        unused = {raw for raw, _ in found.places.values()} - {*self.used}
        ignored = [*found.ignored, *sorted(unused - {*found.ignored})]
        if found.num_prefix_rows > found.config.num_prefix_tokens:
            # The oldest files of big_vision have this row, but no class token.
            ignored.append(f"{found.stored(POSITION_TABLE)}, row 0")
        model.checkpoint_dialect = f"{found.key}/{found.dialect}"
        model.load_report = LoadReport(
            path=found.file.path,
            layout=found.key,
            used=self.used,
            resized=tuple(text for step in self.steps for text in step.resized),
            reset=(*self.reset, *(factor.path for factor in factors)),
            ignored=tuple(ignored),
            notes=tuple(notes),
            preprocessing=found.preprocessing,
        )
        return model.load_report

    def _new_head(self, shapes, head) -> list[str]:
        """Return the weights of the head to initialise anew.

        The pre-logits layer and the classifier are loaded together, because a
        classifier is trained on the outputs of the layer before it.
        """
        held, wanted = (
            {
                path: row
                for path, row in rows.items()
                if path.startswith(HEAD_LAYERS)
            }
            for rows in (self.stored, shapes)
        )
        if head == "strict" and held != wanted:
            raise ValueError(
                f"{self.found.file.path} does not fit the model with "
                f"`head='strict'`: its head is {held or 'missing'}, that of "
                f"the model is {wanted or 'missing'}."
            )
        if head == "reset":
            return list(wanted)
        if held == wanted:
            return []
        # Another number of classes, or none: the pre-logits layer stays.
        before, now = (
            {path: row for path, row in rows.items() if "pre_logits" in path}
            for rows in (held, wanted)
        )
        return [path for path in wanted if path not in now or before != now]

    def _step(self, path, shape) -> Step:
        """Return the step of one weight."""
        found, config = self.found, self.config
        if path == PATCH_BIAS and self.is_renormalized:
            return self._step_of_patch_bias()
        if path not in found.parts:
            lacks_bias = found.config.qkv_bias == "none"
            if path == PATCH_BIAS or (
                path.endswith("/attention/qkv/bias") and lacks_bias
            ):
                return Step(path, (), lambda arrays: np.zeros(shape, "float32"))
            raise ValueError(f"{path} is missing in the file")
        if path == POSITION_TABLE:
            return self._step_of_positions()
        if (
            path.endswith("/token")
            and found.num_prefix_rows
            and not config.use_prefix_positions
            and self.stored[path] == shape
        ):
            return self._step_of_token(path)
        parts, stored = found.parts[path], self.stored[path]
        changes, texts, method = [], [], self.position_resize
        old, new = found.config.grid_size, config.grid_size
        if path.endswith("/table") and old != new:
            changes.append(lambda x: resize_distances(x, old, new, method))
            texts.append(GRIDS.format(path, *old, *new, method))
            counts = [(2 * h - 1) * (2 * w - 1) for h, w in (old, new)]
            stored = (stored[0] + counts[1] - counts[0], *stored[1:])
        if path == PATCHES and self.is_renormalized:
            before, after = found.preprocessing, config.preprocessing
            scale = np.divide(after.deviation, before.deviation)
            scale = np.reshape(scale, (-1, 1)).astype("float32")
            changes.append(lambda kernel: kernel * scale)
            texts.append(
                f"{path}: normalisation {before.normalization!r} to "
                f"{after.normalization!r}"
            )
        if path == ROOT or path == PATCHES and found.config.stem_stages is None:
            if stored[2] != shape[2]:
                changes.append(lambda x: adapt_channels(x, shape[2]))
                count = f"{stored[2]} input channels to {shape[2]}"
                texts.append(f"{path}: {count}")
                stored = (*stored[:2], shape[2], stored[3])
        if path in (PATCHES, ROOT) and stored[:2] != shape[:2]:
            rule = self.patch_resize
            sizes = "{}x{}".format(*stored), "{}x{}".format(*shape)
            if rule is None:
                raise ValueError(
                    f"{found.stored(path)} has patches of {sizes[0]} and the "
                    f"model of {sizes[1]}; pass `patch_resize=` to resize them"
                )
            changes.append(lambda x: resize_patch_kernel(x, shape[0], rule))
            texts.append(f"{path}: {sizes[0]} pixels to {sizes[1]} ({rule})")
            stored = (*shape[:2], *stored[2:])
        if stored != shape:
            raise ValueError(
                f"{found.stored(path)} is {stored} and the model has {shape}"
            )

        def make(arrays):
            weight = join_parts(parts, arrays)
            for change in changes:
                weight = change(weight)
            return weight

        return Step(path, self.places[path], make, tuple(texts))

    def _step_of_patch_bias(self) -> Step:
        """Return the step of the bias for images of another normalisation.

        For pixels p as fractions of 255, the source reads (p - m) / d and the
        model (p - m') / d' =: u. So p = u d' + m', and the source computes
            sum_c W_c (u_c d'_c + m'_c - m_c) / d_c + b,
        which is a projection of u with other kernels and another bias. Without
        a bias in the source, it is the constant alone.
        """
        theirs, ours = self.found.preprocessing, self.config.preprocessing
        kernel = self.found.parts[PATCHES]
        bias = self.found.parts.get(PATCH_BIAS)
        offset = np.subtract(ours.mean, theirs.mean) / theirs.deviation

        def make(arrays):
            weight, bias_arrays = arrays[: len(kernel)], arrays[len(kernel) :]
            weight = join_parts(kernel, weight)
            sums = weight.sum(axis=(0, 1), dtype="float64")  # (C, D)
            constant = np.broadcast_to(offset, len(sums)) @ sums
            constant = constant.astype(weight.dtype)
            return constant + (join_parts(bias, bias_arrays) if bias else 0)

        places = (*self.places[PATCHES], *self.places.get(PATCH_BIAS, ()))
        return Step(PATCH_BIAS, places, make)

    def _step_of_positions(self) -> Step:
        found, config, path = self.found, self.config, POSITION_TABLE
        method = self.position_resize
        old, new = found.config.grid_size, config.grid_size
        if found.config.width != config.width:
            raise ValueError(
                f"{found.stored(path)} has the width {found.config.width} and "
                f"the model {config.width}"
            )
        wanted = config.use_prefix_positions * config.num_prefix_tokens
        kept = min(wanted, found.num_prefix_rows)

        def make(arrays):
            table = arrays[0].reshape(-1, config.width)
            # Tokens without positions in the file get rows of zeros.
            no_rows = np.zeros((wanted - kept, config.width), table.dtype)
            patches = table[-math.prod(old) :]
            table = np.concatenate([table[:kept], no_rows, patches])
            return resize_positions(table, old, new, method)

        texts = [GRIDS.format(path, *old, *new, method)] if old != new else ()
        return Step(path, self.places[path], make, tuple(texts))

    def _step_of_token(self, path) -> Step:
        """Return the step of tokens, with their positions added.

        A model that adds positions to the patches alone has no rows for them.
        """
        theirs, first = self.found.config, 0
        for name, count in (
            ("class_token/token", int(theirs.use_class_token)),
            ("distillation_token/token", int(theirs.use_distillation_token)),
            ("registers/token", theirs.num_registers),
        ):
            if name == path:
                break
            first += count
        rows = range(first, min(first + count, self.found.num_prefix_rows))

        def make(arrays):
            tokens, table = arrays
            tokens = tokens.reshape(1, count, theirs.width).copy()
            tokens[0, : len(rows)] += table.reshape(-1, theirs.width)[rows]
            return tokens

        places = (*self.places[path], *self.places[POSITION_TABLE])
        return Step(path, places, make)

    def _differences(self) -> Iterator[str]:
        """Yield the reasons why outputs differ from those of the source."""
        found, config = self.found, self.config
        sources, models = (
            effective_fields(row, config) for row in (found.config, config)
        )
        for field in (field for field in COMPARED if field in models):
            source, model = sources[field], models[field]
            if source == model or field == "pooling" and not config.num_classes:
                continue
            if field == "pooling_indices" and sources["pooling"] != "prefix":
                continue  # The pooling itself is another.
            yield (
                f"The source computes with {field}={source!r}, the model with "
                f"{field}={model!r}, so outputs differ. Build the model with "
                f"`{field}={source!r}` to match it."
            )
        theirs, ours = found.preprocessing, config.preprocessing
        if theirs is None or self.is_renormalized:
            return
        mode, own = theirs.normalization, ours.normalization
        start = f"{found.file.path} was trained with images "
        if mode != own:
            advice = "model=model)`"
            if len(theirs.mean) in (1, config.channels):
                advice = f"mode={mode!r})`, or build the model with that "
                advice += "`preprocessing`"
            yield (
                f"{start}of {len(theirs.mean)} channels, normalised by "
                f"{mode!r}. The model is built for {config.channels} channels "
                f"and {own!r}, and its weights are not adapted to that, so the "
                "outputs for equal images differ. Call "
                f"`keras_vit.preprocess_input(images, {advice}."
            )
        elif mode != "vit":
            yield (
                f"{start}normalised in another way than the default of "
                "`preprocess_input`. Call "
                "`keras_vit.preprocess_input(images, model=model)`, or pass "
                "`preprocessing='vit'` to adapt the weights to the default."
            )


def join_parts(parts, arrays) -> np.ndarray:
    """Return the weight whose parts are the arrays of the file.

    A transposed matrix is copied in row order, block by block: a block fits
    into the cache, so this is twice as fast as a single copy.
    """
    pieces = []
    for part, array in zip(parts, arrays):
        if array is None:
            piece = np.zeros(part.shape, "float32")
        else:
            piece = part.form.to_ours(array, part.shape)
        if piece.ndim == 2 and not piece.flags.c_contiguous:
            columns, piece = piece, np.empty(piece.shape, piece.dtype)
            for start in range(0, piece.shape[1], 64):
                block = slice(start, start + 64)
                piece[:, block] = columns[:, block]
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=-1)


# The text of a report on a table: its path, its old and new grid and the rule.
GRIDS = "{}: {}x{} patches to {}x{} ({})"
# Fields of ViTConfig that determine which weights exist.
STRUCTURE = (
    "width",
    "depth",
    "mlp_dim",
    "num_heads",
    "stem_stages",
    "use_class_token",
    "num_registers",
    "position_embedding",
    "pooling",
    "use_pooling_norm",
)
# Names of arguments in other builders -> the arguments here.
RENAMED_FIELDS = {
    "num_classes": "classes",
    "include_top": "classes",
    "input_shape": "image_size",
}
# Fields of ViTConfig that do not affect the weights, but the outputs.
COMPARED = (
    "activation",
    "layer_norm_epsilon",
    "stem_epsilons",
    "position_embedding",
    "pooling",
    "pooling_indices",
    # Without an effect: the weights are added to others, or are zero.
    *(
        field
        for field in LATER_FIELDS
        if field not in ("use_prefix_positions", "qkv_bias", "use_patch_bias")
    ),
    "rotary_temperature",
    "rotary_axes",
    "rotary_reference_size",
    "rotary_offset",
)
