"""DensePredictor: an encoder and a head that answers for each pixel.

The heads are a linear one on the features of blocks, and the one of DPT
(Ranftl et al. 2021, arXiv:2103.13413), which Depth Anything uses as well.
"""

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_vit.arguments import as_rate, as_whole
from keras_vit.layers.base import (
    Layer,
    refuse_quantized,
    wide_policy_at,
)
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.models.config import ViTConfig, settle_fields
from keras_vit.models.tuning import (
    TunableModel,
    describe_frozen,
    freeze_again,
    layers_with_lora,
)
from keras_vit.models.vit import (
    VisionTransformer,
    block_indices,
    check_vision_transformer,
)
from keras_vit.tables import check_name

# What the maps of the stages are enlarged by, from the first to the last.
FACTORS = (4, 2, 1, 0.5)
# What the tokens before the patches add to each patch: nothing, the class
# token, further features that are those of the class token, or a projection of
# the patch and the class token.
READOUTS = dict.fromkeys(("ignore", "add", "join", "project"))
OUTPUT_ACTIVATIONS = dict.fromkeys((None, "relu", "sigmoid"))


@dataclasses.dataclass(frozen=True)
class DenseConfig:
    """The configuration of the head of a DensePredictor.

    Args:
        num_outputs: Numbers for each pixel: classes, or 1 for a depth.
        head: A key of HEADS: "linear", one number of each block's features for
            each output; "dpt", the maps of four blocks at four resolutions,
            fused from the coarsest to the finest.
        blocks: Indices of the blocks that the head reads, in their order; of
            "dpt" four, from that of the finest map to that of the coarsest.
            Negative ones count from the end.
        use_norm: Whether the last norm of the encoder is applied to each, if
            it has one before its pooling.
        use_batch_norm: Whether the features are normalised over the batch: of
            "linear" before the projection, as in the linear heads of DINOv2;
            of "dpt" within the residual units.
        dropout_rate: Share of the features that training drops before the last
            projection.
        activation: A key of OUTPUT_ACTIVATIONS; None for logits.
        output_scale: Factor of the outputs behind the activation, such as the
            largest depth in metres.
        class_names: Names of the classes, one for each output; None if the
            model does not know them.
        readout: A key of READOUTS: what the class token does.
        depth_bins: Of "linear" with one output: the number of depths whose
            mean is the output, weighed by the head, as in the linear heads of
            DINOv2; None for a head that returns the output itself.
        depth_range: The first and the last of these depths.
        stage_widths: Channels of the maps of the four stages; of "dpt" only,
            as all below.
        width: Channels of the fused maps.
        output_width: Channels before the last projection, of three
            convolutions, as for depths; None for two convolutions with a batch
            norm, as for classes.
        use_unit_bias: Whether the convolutions of residual units have biases.
        has_exact_sizes: Whether a fused map takes the size of the next stage,
            as in Depth Anything; otherwise it is doubled, and the next stage
            takes its size.

    Raises:
        ValueError: If a value is invalid or two values contradict each other.
    """

    num_outputs: int
    head: str = "linear"
    blocks: tuple[int, ...] = (-1,)
    use_norm: bool = True
    use_batch_norm: bool = False
    dropout_rate: float = 0.0
    activation: str | None = None
    output_scale: float = 1.0
    class_names: tuple[str, ...] | None = None
    readout: str = "ignore"
    depth_bins: int | None = None
    depth_range: tuple[float, float] = (0.001, 10.0)
    stage_widths: tuple[int, ...] = (96, 192, 384, 768)
    width: int = 256
    output_width: int | None = 32
    use_unit_bias: bool = True
    has_exact_sizes: bool = True

    def __post_init__(self):
        settle_fields(self)
        # A whole number is written as a float.
        object.__setattr__(self, "output_scale", float(self.output_scale))
        for name in ("num_outputs", "width", "output_width", "depth_bins"):
            if getattr(self, name) is not None:
                as_whole(getattr(self, name), name)
        for width in self.stage_widths:
            as_whole(width, "stage_widths")
        as_rate(self.dropout_rate, "dropout_rate")
        check_name(HEADS, self.head, "head")
        check_name(READOUTS, self.readout, "readout")
        check_name(OUTPUT_ACTIVATIONS, self.activation, "activation")
        self._check_depths()
        names = self.class_names
        if names is not None and len(names) != self.num_outputs:
            raise ValueError(
                f"`class_names` must have {self.num_outputs} names, one for "
                f"each output. Received: class_names={names!r}"
            )
        if not self.blocks:
            raise ValueError("`blocks` must name a block. Received: blocks=()")
        if self.head == "dpt":
            for name in ("blocks", "stage_widths"):
                if len(getattr(self, name)) != len(FACTORS):
                    raise ValueError(
                        f"`{name}` must have {len(FACTORS)} numbers for the "
                        f"head 'dpt'. Received: {name}={getattr(self, name)}"
                    )

    def _check_depths(self):
        """Check the fields of depths in bins."""
        nearest, farthest = self.depth_range
        if not 0 <= nearest < farthest < math.inf:
            raise ValueError(
                "`depth_range` must be two depths, the smaller one first. "
                f"Received: depth_range={self.depth_range!r}"
            )
        others = {"head": "linear", "num_outputs": 1, "activation": None}
        for name, value in others.items() if self.depth_bins else ():
            found = getattr(self, name)
            if found != value:
                raise ValueError(
                    f"`depth_bins` must be None unless {name}={value!r}. "
                    f"Received: depth_bins={self.depth_bins}, {name}={found!r}"
                )


@keras.saving.register_keras_serializable(package="keras_vit")
class Resample(Layer):
    """Resize maps bilinearly, to a multiple or to the size of others.

    Unlike `keras.ops.image.resize`, it can align the corners, as PyTorch's
    `interpolate` with `align_corners=True`.

    Shapes:
        maps: (B, h, w, D). like: (B, H, W, ...).
        returns: (B, H, W, D), or (B, f h, f w, D) without `like`.

    Args:
        factor: The multiple f, if there is no `like`.
        is_aligned: Whether the first and the last places coincide, instead of
            the borders of the cells around them.

    Example:
        >>> maps = np.array([0.0, 1.0], "float32").reshape(1, 1, 2, 1)
        >>> resample = models.dense.Resample(2, is_aligned=True)
        >>> np.ravel(resample(maps)[0, 0]).round(3)
        array([0.   , 0.333, 0.667, 1.   ], dtype=float32)
    """

    def __init__(self, factor: int = 1, is_aligned: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor
        self.is_aligned = is_aligned

    def build(self, maps_shape, like_shape=None):
        self.built = True

    def call(self, maps, like=None):
        sizes = [size * self.factor for size in ops.shape(maps)[1:3]]
        if like is not None:
            sizes = ops.shape(like)[1:3]
        for axis, new in zip((1, 2), sizes):
            maps = self._resize(maps, axis, new)
        return maps

    def _resize(self, maps, axis, new):
        old = ops.shape(maps)[axis]
        if isinstance(new, int) and isinstance(old, int) and new == old:
            return maps
        index = ops.arange(new, dtype="float32")
        last, count = ops.cast(old, "float32") - 1, ops.cast(new, "float32")
        if self.is_aligned:
            places = index * last / ops.maximum(count - 1, 1)
        else:
            places = (index + 0.5) * (last + 1) / count - 0.5
            places = ops.minimum(ops.maximum(places, 0), last)
        low = ops.floor(places)
        shape = (1, -1, 1, 1) if axis == 1 else (1, 1, -1, 1)
        share = ops.cast(ops.reshape(places - low, shape), maps.dtype)
        high = ops.cast(ops.minimum(low + 1, last), "int32")
        first = ops.take(maps, ops.cast(low, "int32"), axis=axis)
        second = ops.take(maps, high, axis=axis)
        return first + (second - first) * share

    def compute_output_shape(self, maps_shape, like_shape=None):
        sizes = maps_shape[1:3] if like_shape is None else like_shape[1:3]
        factor = self.factor if like_shape is None else 1
        sizes = (None if size is None else size * factor for size in sizes)
        return (maps_shape[0], *sizes, maps_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class Readout(Layer):
    """Give each patch what the class token knows.

    Shapes:
        patches: (B, h, w, D). prefix: (B, P, D), the class token first.
        returns: (B, h, w, D), or (B, h, w, 2 D) for "join".

    Args:
        readout: A key of READOUTS but "ignore".
    """

    def __init__(self, readout: str, **kwargs):
        super().__init__(**kwargs)
        self.readout = readout

    def build(self, patches_shape, prefix_shape):
        if self.readout == "project":
            self.projection = keras.layers.Dense(
                patches_shape[-1],
                activation=ACTIVATIONS["exact"],
                dtype=self.dtype_policy,
                name="projection",
            )
            self.projection.build((*patches_shape[:-1], 2 * patches_shape[-1]))

    def call(self, patches, prefix):
        token = prefix[:, :1, None]
        if self.readout == "add":
            return patches + token
        token = ops.broadcast_to(token, ops.shape(patches))
        joined = ops.concatenate([patches, token], axis=-1)
        return joined if self.readout == "join" else self.projection(joined)

    def compute_output_shape(self, patches_shape, prefix_shape):
        width = patches_shape[-1] * (1 + (self.readout == "join"))
        return (*patches_shape[:-1], width)


@keras.saving.register_keras_serializable(package="keras_vit")
class DepthBins(Layer):
    """Return the mean of depths at even distances, weighed by the features.

    The weight of each depth is its feature, 0 if that is negative, and 0.1.

    Shapes:
        x: (B, H, W, N). returns: (B, H, W, 1).

    Args:
        depth_range: The first and the last of the N depths.

    Example:
        >>> bins = models.dense.DepthBins((0, 4))
        >>> x = np.array([0.0, -1.0, 0.7], "float32").reshape(1, 1, 1, 3)
        >>> round(float(np.ravel(bins(x))[0]), 3)  # (0.1 * 2 + 0.8 * 4) / 1
        3.4

    Reference: Bhat et al. 2021, arXiv:2011.14141; the weights are those of
        the linear heads of Oquab et al. 2023, arXiv:2304.07193.
    """

    def __init__(self, depth_range: tuple[float, float], **kwargs):
        super().__init__(**kwargs)
        self.depth_range = tuple(depth_range)

    def call(self, x):
        weights = ops.relu(x) + 0.1
        depths = np.linspace(*self.depth_range, x.shape[-1], dtype="float32")
        mean = weights * ops.cast(depths, weights.dtype)
        mean = ops.sum(mean, axis=-1, keepdims=True)
        return mean / ops.sum(weights, axis=-1, keepdims=True)

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], 1)


def _read_out(config, maps, inner):
    """Return the patches of each block, with what the class token adds."""
    if config.readout == "ignore":
        return [patches for patches, _ in maps]
    return [
        inner(Readout, f"stage_{index}_readout", config.readout)(*pair)
        for index, pair in enumerate(maps)
    ]


def _linear(config, maps, images, inner, policy):
    """Return a projection of the features, at the size of the images."""
    x = _read_out(config, maps, inner)
    x = x[0] if len(x) == 1 else ops.concatenate(x, axis=-1)
    if config.use_batch_norm:
        x = inner(keras.layers.BatchNormalization, "head_norm", **OF_TORCH)(x)
    x = _project(config, x, inner, policy)
    if config.depth_bins:
        options = {"dtype": wide_policy_at(policy, "outputs")}
        x = inner(Resample, "head_resize", 4, **options)(x)
        x = inner(DepthBins, "head_depths", config.depth_range, **options)(x)
    return x


def _project(config, x, inner, policy):
    """Return the outputs at the size of the maps, before the activation."""
    if config.dropout_rate:
        rate = config.dropout_rate
        x = inner(keras.layers.Dropout, "head_dropout", rate)(x)
    wide = wide_policy_at(policy, "predictions")
    count = config.depth_bins or config.num_outputs
    options = {"dtype": wide, **CHANNELS_LAST}
    return inner(keras.layers.Conv2D, "predictions", count, 1, **options)(x)


# Also if Keras is configured otherwise.
CHANNELS_LAST = {"data_format": "channels_last"}


# As PyTorch's BatchNorm2d: it keeps nine tenths of the statistics.
OF_TORCH = {"epsilon": 1e-5, "momentum": 0.9}


def _dpt(config, maps, images, inner, policy):
    """Return the fused maps of four stages, projected."""

    def conv(name, width, side=3, **options):
        options = {"padding": "same", **CHANNELS_LAST, **options}
        return inner(keras.layers.Conv2D, name, width, side, **options)

    def unit(x, name):
        """A residual unit of two convolutions."""
        y = x
        for part in ("1", "2"):
            y = ops.relu(y)
            options = {"use_bias": config.use_unit_bias}
            y = conv(f"{name}_conv_{part}", config.width, **options)(y)
            if config.use_batch_norm:
                norm = keras.layers.BatchNormalization
                y = inner(norm, f"{name}_norm_{part}", **OF_TORCH)(y)
        return x + y

    stages = []
    for index, patches in enumerate(_read_out(config, maps, inner)):
        name, width = f"stage_{index}", config.stage_widths[index]
        x = conv(f"{name}_projection", width, 1)(patches)
        factor = FACTORS[index]
        if factor > 1:
            transposed = keras.layers.Conv2DTranspose
            x = inner(
                transposed,
                f"{name}_resize",
                width,
                factor,
                factor,
                **CHANNELS_LAST,
            )(x)
        elif factor < 1:
            pad = keras.layers.ZeroPadding2D
            x = inner(pad, f"{name}_pad", 1, **CHANNELS_LAST)(x)
            options = {"strides": 2, "padding": "valid"}
            x = conv(f"{name}_resize", width, **options)(x)
        neck = conv(f"{name}_neck", config.width, use_bias=False)
        stages.append(neck(x))

    x = None
    for index in reversed(range(len(stages))):
        stage, name = stages[index], f"fusion_{index}"
        if x is None:
            x = stage
        else:
            if not config.has_exact_sizes:
                stage = inner(Resample, f"{name}_fit")(stage, x)
            x = x + unit(stage, f"{name}_stage")
        x = unit(x, f"{name}_unit")
        resample = inner(Resample, f"{name}_resize", factor=2, is_aligned=True)
        is_last = index == 0 or not config.has_exact_sizes
        x = resample(x) if is_last else resample(x, stages[index - 1])
        x = conv(f"{name}_projection", config.width, 1)(x)

    if config.output_width is None:
        x = conv("head_conv", config.width, use_bias=False)(x)
        x = inner(keras.layers.BatchNormalization, "head_norm", **OF_TORCH)(x)
        x = _project(config, ops.relu(x), inner, policy)
        return inner(Resample, "head_resize", 2, is_aligned=True)(x)
    x = conv("head_conv_1", config.width // 2)(x)
    resize = inner(Resample, "head_resize", 2, is_aligned=True)
    x = resize(x, images) if config.has_exact_sizes else resize(x)
    x = ops.relu(conv("head_conv_2", config.output_width)(x))
    return _project(config, x, inner, policy)


# Each takes the configuration, the pairs of `features` of each block, the
# images, what makes layers and their policy.
HEADS = {"linear": _linear, "dpt": _dpt}


@keras.saving.register_keras_serializable(package="keras_vit")
class DensePredictor(TunableModel):
    """An encoder and a head with an answer for each pixel.

    Its layers are those of a `VisionTransformer` up to the last block that the
    head reads, with the same names, and those of the head.

    Shapes:
        images: (B, H, W, C), as for the encoder.
        returns: (B, H, W, num_outputs).

    Args:
        config: The configuration of the encoder. What the head does not read
            is left out: later blocks, the pooling, the classifier.
        head: The configuration of the head.
        dtype: Dtype policy of the layers; None for Keras' global policy. Under
            mixed precision, the outputs are float32.
        name: Name of the model.
        trainable: Whether the weights are trained.
        edits: What users have changed on layers, see `VisionTransformer`.

    Raises:
        ValueError: If the head needs what the encoder does not have.

    Example:
        >>> head = models.DenseConfig(num_outputs=5, blocks=(0, -1))
        >>> model = models.DensePredictor(VARIANTS["mu/16"].config, head)
        >>> tuple(model(np.ones((1, 224, 224, 3), "float32")).shape)
        (1, 224, 224, 5)
    """

    configurations = {"config": ViTConfig, "head": DenseConfig}

    def __init__(
        self,
        config: ViTConfig,
        head: DenseConfig,
        dtype=None,
        name: str = "dense_predictor",
        trainable: bool = True,
        edits: dict | None = None,
    ):
        if head.readout != "ignore" and not config.use_class_token:
            raise ValueError(
                "`readout` must be 'ignore' for an encoder without a class "
                f"token. Received: readout={head.readout!r}"
            )
        block_indices(config.depth, head.blocks, "blocks")
        # From the start: the end changes with the blocks that are left out.
        blocks = tuple(range(config.depth)[index] for index in head.blocks)
        head = dataclasses.replace(head, blocks=blocks)
        has_norm = config.use_final_norm and not config.use_pooling_norm
        depth = max(blocks) + 1
        # The share of the last block that is left, so that all keep theirs.
        share = (depth - 1) / max(config.depth - 1, 1)
        config = dataclasses.replace(
            config,
            depth=depth,
            stochastic_depth_rate=config.stochastic_depth_rate * share,
            pooling="none",
            use_pooling_norm=False,
            use_final_norm=head.use_norm and has_norm,
            representation_size=None,
            num_classes=0,
            class_names=None,
            probabilities=None,
        )
        vit = VisionTransformer(config, dtype=dtype, edits=edits)
        policy, inner, images = vit.dtype_policy, vit.inner, vit.input
        maps = [
            vit.features(images, [block], with_prefix=True)[0]
            for block in blocks
        ]
        x = HEADS[head.head](head, maps, images, inner, policy)
        options = {"dtype": wide_policy_at(policy, "outputs")}
        if head.activation:
            x = inner(
                keras.layers.Activation,
                "activation",
                head.activation,
                **options,
            )(x)
        # After the activation, as transformers' users resize depths.
        x = inner(Resample, "outputs", **options)(x, images)
        if head.output_scale != 1:
            scale = head.output_scale
            x = inner(keras.layers.Rescaling, "scale", scale, **options)(x)
        super().__init__(
            inputs=images, outputs=x, name=name, trainable=trainable
        )
        self.dtype_policy = policy
        self.config, self.head, self.inner = config, head, inner

    @property
    def task(self) -> str:
        """What the outputs are: "depth", one for each pixel, or "segment"."""
        return "depth" if self.head.num_outputs == 1 else "segment"

    @property
    def larger_depths(self) -> str:
        """What larger depths mean: "far", as in metres, or "near".

        Only a head that states a largest depth or bins has metres; others are
        right up to scale and shift, as those of DPT and Depth Anything.
        """
        has_metres = self.head.activation == "sigmoid" or self.head.depth_bins
        return "far" if has_metres else "near"


def dense_predictor(
    model: VisionTransformer, head: DenseConfig, name="dense_predictor"
) -> DensePredictor:
    """Return a model with a new head and a copy of an encoder's weights.

    What is frozen in the encoder is frozen in the copy.

    Args:
        model: The encoder, such as DINOv3 by `from_checkpoint`.
        head: The configuration of the head.
        name: Name of the new model.

    Raises:
        ValueError: If the head does not fit the encoder, or that is quantised
            or has LoRA updates.
    """
    check_vision_transformer(model)
    refuse_quantized(model, "quantise the dense predictor instead")
    if layers_with_lora(model):
        raise ValueError(
            "`model` must not have LoRA updates; pass `model.merge_lora()`. "
            f"Received: model={model.name!r}"
        )
    layers = [x for x in model.layers if x.name != "predictions"]
    edits = model.inner.find_edits(layers).get("edits")
    dense = DensePredictor(
        model.config, head, dtype=model.dtype_policy, name=name, edits=edits
    )
    found = {weight.path: weight for weight in model.weights}
    for weight in dense.weights:
        is_new = weight.path.startswith("predictions/")
        if weight.path in found and not is_new:
            weight.assign(found[weight.path])
    frozen = {
        kind: [x for x in paths if not x.startswith("predictions")]
        for kind, paths in describe_frozen(model).items()
    }
    freeze_again(dense, frozen["frozen"], frozen.get("frozen_weights", ()))
    return dense


def predict_windows(
    model: keras.Model, images, overlap: float = 0.5, batch_size: int = 8
) -> np.ndarray:
    """Return the outputs of a model for images that are larger than its own.

    The images are read in windows of the size of the model, which cover them
    evenly. Where windows overlap, the mean of their outputs counts, to which
    each contributes the less, the nearer its border is, so that no seam is
    seen.

    Shapes:
        images: (B, H, W, C). returns: (B, H, W, num_outputs), float32.

    Args:
        model: A DensePredictor, or another model with outputs for each pixel,
            of images of a fixed size.
        images: The images, preprocessed for the model.
        overlap: Least share of a window that the next one covers too.
        batch_size: Number of windows at once.

    Raises:
        ValueError: If the images are smaller than the model's, or an argument
            is invalid.
    """
    sides, images = model.input_shape[1:3], np.asarray(images)
    overlap = as_rate(overlap, "overlap")
    batch_size = as_whole(batch_size, "batch_size")
    if (
        None in sides
        or images.ndim != 4
        or min(np.subtract(images.shape[1:3], sides)) < 0
    ):
        raise ValueError(
            "`images` must be (B, H, W, C), at least as large as the images "
            f"of the model. Received: images.shape={images.shape}, "
            f"input_shape={model.input_shape}"
        )
    starts = []
    for whole, side in zip(images.shape[1:3], sides):
        step = max(int(side * (1 - overlap)), 1)
        count = -(-(whole - side) // step) + 1
        starts.append(np.linspace(0, whole - side, count).round().astype(int))
    places = [
        (index, slice(top, top + sides[0]), slice(left, left + sides[1]))
        for index in range(len(images))
        for top in starts[0]
        for left in starts[1]
    ]
    shape = (*images.shape[:3], model.output_shape[-1])
    total = np.zeros(shape, "float32")
    covers = np.zeros((*images.shape[:3], 1), "float32")
    ramps = [np.minimum(np.arange(n) + 1, n - np.arange(n)) for n in sides]
    weights = np.multiply.outer(*ramps).astype("float32")[..., None]
    for first in range(0, len(places), batch_size):
        part = places[first : first + batch_size]
        windows = np.stack([images[place] for place in part])
        outputs = ops.convert_to_numpy(model.predict_on_batch(windows))
        for place, output in zip(part, outputs):
            total[place] += weights * output
            covers[place] += weights
    return total / covers
