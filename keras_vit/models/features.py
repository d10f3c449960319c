"""What a model computes on the way: tokens, attention, features, gradients."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.base import is_quantized
from keras_vit.layers.kernels import record
from keras_vit.layers.pooling import POOLINGS, DistilledHead
from keras_vit.models.dense import DensePredictor
from keras_vit.models.vit import (
    VisionTransformer,
    block_indices,
    check_has_all_patches,
    check_vision_transformer,
)
from keras_vit.tables import check_name


def as_images(images, model: VisionTransformer | None = None):
    """Return images as an array or tensor that a model can read.

    Shapes:
        images: (B, H, W, C). returns: the same.

    Args:
        images: An array, a tensor, or lists of numbers.
        model: The model; None if any size will do.

    Raises:
        ValueError: If they are not images, or of another size than the model's,
            or it is not a VisionTransformer.
    """
    if model is not None:
        check_vision_transformer(model)
    if not hasattr(images, "shape"):
        try:
            images = np.asarray(images, "float32")
        except (TypeError, ValueError):
            raise ValueError(
                "`images` must be an array of numbers of the shape "
                f"(B, H, W, C). Received: {type(images).__name__}"
            ) from None
    shape = tuple(images.shape)
    if len(shape) != 4 or not shape[0]:
        raise ValueError(
            "`images` must have the shape (B, H, W, C) with B > 0. "
            f"Received: shape={shape}"
        )
    wanted = () if model is None else model.input_shape[1:]
    if any(want not in (None, size) for want, size in zip(wanted, shape[1:])):
        raise ValueError(
            "`images` must have the height, the width and the channels of the "
            f"model, {wanted}. Received: shape={shape}"
        )
    return images


def split_batches(
    model: VisionTransformer, images, batch_size: int
) -> Iterator[tuple[slice, object]]:
    """Yield the images in batches, as (slice, images[slice]).

    Args:
        model: The model that reads them.
        images: See `as_images`.
        batch_size: Largest number of images of a batch.

    Raises:
        ValueError: If the images are not those of the model, `batch_size` is
            not positive, or the model is not a VisionTransformer.
    """
    images = as_images(images, model)
    batch_size = as_whole(batch_size, "batch_size")
    for start in range(0, len(images), batch_size):
        part = slice(start, min(start + batch_size, len(images)))
        yield part, images[part]


def run_with_scores(
    layer: keras.layers.Layer,
    tokens,
    change_scores: Callable | None = None,
    **inputs,
) -> tuple:
    """Return the output of a block or an attention, and its probabilities.

    Shapes:
        tokens: (B, T, D).
        returns: (B, T, D), and the attention probabilities (B, K, T, T),
            whose last axis sums to one.

    Args:
        layer: A built `TransformerBlock` or `MultiHeadSelfAttention`.
        tokens: The input of the layer.
        change_scores: Function that changes the probabilities before they
            weigh the values. The returned probabilities are the original ones.
        **inputs: What the layer gets beside the tokens, such as a mask.

    Example:
        >>> layer = layers.MultiHeadSelfAttention(num_heads=3)
        >>> layer.build((None, 5, 24))
        >>> _, scores = models.features.run_with_scores(
        ...     layer, np.ones((2, 5, 24), "float32")
        ... )
        >>> tuple(scores.shape)
        (2, 3, 5, 5)
    """
    found = []

    def note(scores):
        found.append(scores)
        return scores if change_scores is None else change_scores(scores)

    y = layer(tokens, **inputs, training=False, change_scores=note)
    return y, found[0]


def run_blocks(
    model: VisionTransformer,
    images,
    watched: Sequence[int] | None = None,
    changes: Sequence[Callable] | None = None,
    entered: tuple | None = None,
) -> Iterator[tuple]:
    """Yield the tokens after each block, and its attention probabilities.

    Blocks run in inference mode, and the model does not change.

    Shapes:
        images: (B, H, W, C). yields: (B, T, D) and (B, K, T, T).

    Args:
        model: The model.
        images: Its images.
        watched: Indices of blocks; of others, the probabilities are None, and
            blocks after the last of them do not run. None runs all blocks and
            yields no probabilities.
        changes: The `change_scores` of each block.
        entered: What `enter_blocks` returned for the images.
    """
    tokens, positions = entered or enter_blocks(model, images)
    if watched is not None:
        positions = positions[: max(watched) + 1]
    for index, inputs in enumerate(positions):
        block, scores = get_block(model, index), None
        if watched is not None and index in watched:
            change = changes and changes[index]
            tokens, scores = run_with_scores(block, tokens, change, **inputs)
        else:
            tokens = block(tokens, **inputs, training=False)
        yield tokens, scores
        del scores  # So that it need not stay in memory during the next block.


def attention_scores(
    model: VisionTransformer, images, layers: Sequence[int] | None = None
) -> list:
    """Return the attention probabilities of blocks, as tensors.

    Works on arrays, on tensors and inside a traced function, such as the
    signature of a SavedModel. Blocks after the last one in `layers` do not
    run.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`; B may be unknown.
        returns: a tensor (B, K, T, T) for each of `layers`, in the compute
            dtype of the model. The last axis sums to one.

    Args:
        model: Any VisionTransformer.
        images: The images to compute attention for.
        layers: Indices of blocks; negative indices count from the end. None
            for all blocks.

    Raises:
        ValueError: If `model` is not a VisionTransformer or does not have
            these blocks.
    """
    check_vision_transformer(model)
    indices = block_indices(model.config.depth, layers, "layers")
    scores = [scores for _, scores in run_blocks(model, images, indices)]
    return [scores[index] for index in indices]


def enter_blocks(model: VisionTransformer, images) -> tuple:
    """Return the tokens before the first block, and all other block inputs.

    Shapes:
        images: (B, H, W, C).
        returns: (B, T, D), and for each block a dictionary of its other
            arguments, as `position_layers` names them.
    """
    check_vision_transformer(model)
    check_has_all_patches(model)
    # This model shares the layers without calling them again, so it leaves no
    # trace in `model`.
    start = keras.Model(model.input, block_inputs(model), name="before_blocks")
    return start(images, training=False)


def block_inputs(model: VisionTransformer) -> tuple:
    """Return what `enter_blocks` does, as symbolic tensors."""
    depth = model.config.depth
    inputs = [inputs_of(get_block(model, index)) for index in range(depth)]
    tokens, *_ = [row.pop("tokens") for row in inputs]
    return tokens, inputs


def inputs_of(block: keras.layers.Layer) -> dict:
    """Return the symbolic inputs of a block of a model, by argument."""
    arguments = block._inbound_nodes[0].arguments
    inputs = {"tokens": arguments.args[0], **arguments.kwargs}
    return {key: x for key, x in inputs.items() if x is not None}


def layers_after_blocks(model: VisionTransformer) -> list:
    """Return the layers after the last block; each reads the one before."""
    last = get_block(model, model.config.depth - 1)
    return model.layers[model.layers.index(last) + 1 :]


def get_block(model: VisionTransformer, index: int):
    """Return block number `index`."""
    return model.get_layer(f"block_{index:02d}")


def grid_size_of(model: VisionTransformer, images) -> tuple:
    """Return (h, w), the grid of patches that `model` cuts `images` into.

    Args:
        model: Any VisionTransformer.
        images: An array or tensor. Its size is read only if `model` accepts
            any image size; while a function is traced, it may be unknown.
    """
    check_vision_transformer(model)
    config = model.config
    if not config.use_dynamic_image_size:
        return config.grid_size
    # SAME padding of a stem rounds up.
    cells = [-(-n // config.stem_stride) for n in ops.shape(images)[1:3]]
    return tuple(size // config.patch_size for size in cells)


def name_output(model: keras.Model, output: str | None = None) -> str:
    """Return the kind of the outputs of `model`, one of OUTPUTS.

    Unless the caller knows it, the kind is inferred from the last operation
    that changes the values: a softmax or sigmoid returns probabilities, a
    linear layer with weights returns logits, and anything else returns
    features. So do outputs of another shape than (B, C), except for those of a
    DensePredictor: one for each pixel is its depth, and several without an
    activation are the logits of its classes.
    """
    if output is not None:
        check_name(OUTPUTS, output, "output")
        return output
    if (dense := find_dense(model)) is not None:
        if dense.task == "depth":
            return "depths"
        return "features" if dense.head.activation else "pixel_logits"
    if len(model.output_shape) != 2:
        return "features"
    kind, has_kernel = last_change(model)
    if kind in CLASSIFIER_ACTIVATIONS:
        return "probabilities"
    return "logits" if has_kernel and kind == "linear" else "features"


def find_dense(model: keras.Model) -> DensePredictor | None:
    """Return the DensePredictor that makes the outputs of a model, if any."""
    while is_graph(model) and not isinstance(model, DensePredictor):
        model = next(walk_back(model)).operation
    return model if isinstance(model, DensePredictor) else None


def name_activation(model: keras.Model) -> str | None:
    """Return the key of CLASSIFIER_ACTIVATIONS that makes the outputs.

    None for no activation, or a model whose layers are unknown.
    """
    if not is_graph(model):
        return None
    kind, _ = last_change(model)
    return kind if kind in CLASSIFIER_ACTIVATIONS else None


def last_change(model: keras.Model) -> tuple[str, bool]:
    """Return the last function that changes the values of the outputs.

    By its name, in lower case, and whether it is that of a layer with weights.
    The name is "" for a VisionTransformer without a classifier.
    """
    if is_headless(model):
        return "", False
    for node in walk_back(model):
        operation = node.operation
        if is_graph(operation):
            return last_change(operation)
        activation = getattr(operation, "activation", operation)
        # Either a function, such as the activation of a Dense layer, or an
        # operation.
        kind = getattr(activation, "__name__", type(activation).__name__)
        kind = kind.lower()
        is_last = kind not in ("linear", "dropout", "identity")
        if is_last or has_weights(operation):
            return kind, has_weights(operation)
    return "", False


def without_head(model: keras.Model) -> keras.Model:
    """Return the model from its input to the features (B, D) before its head.

    Both models share their layers. A model that already returns features is
    returned unchanged.

    Args:
        model: A functional or Sequential model with one input and one output.
            The head may be inside a nested model.

    Raises:
        ValueError: If `model` is not functional or Sequential.
    """
    if not is_graph(model):
        raise ValueError(
            "`model` must be a functional or Sequential model of one input "
            f"and one output. Received: {type(model).__name__}"
        )
    if name_output(model) not in CLASSIFIER_OUTPUTS:
        return model
    *_, head = walk_back(model)
    if len(head.input_tensors) != 1:
        return model
    (x,) = head.input_tensors
    if is_graph(head.operation):
        x = without_head(head.operation)(x)
    return keras.Model(model.inputs[0], x, name=model.name)


def split_at_head(
    model: keras.Model, has_head: bool, is_short: bool
) -> Callable:
    """Return the function from images to (features, outputs of the model).

    The model is functional or Sequential, of one input and one output. The
    features are the input of the head if it `has_head`, or else the outputs.
    `is_short` allows the last block to compute only the class token, see
    `reads_one_token`.
    """
    has_head = has_head and not is_headless(model)
    *behind, head = walk_back(model)
    if is_graph(head.operation):
        return split_nested(model, has_head, is_short)
    if is_short and reads_one_token(model):
        return split_at_last_block(model, has_head)
    outputs = model.outputs[0]
    is_known = has_head and len(head.input_tensors) == 1
    features = head.input_tensors[0] if is_known else outputs
    both = keras.Model(model.inputs[0], [features, outputs], name=model.name)
    return lambda images: both(images, training=False)


def split_nested(
    model: keras.Model, has_head: bool, is_short: bool
) -> Callable:
    """Return `split_at_head` of a model whose head is in a nested model."""
    *behind, head = walk_back(model)
    # The exports contain the name, and a default name of Keras would be
    # numbered.
    before = keras.Model(
        model.inputs[0], head.input_tensors[0], name=model.name
    )
    inside = split_at_head(head.operation, has_head, is_short)

    def compute(images):
        features, outputs = inside(before(images, training=False))
        for node in reversed(behind):
            known = {id(node.input_tensors[0]): outputs}
            args, kwargs = node.arguments.fill_in(known)
            outputs = node.operation(*args, **kwargs)
        return (features if has_head else outputs), outputs

    return compute


def split_at_last_block(model: VisionTransformer, has_head: bool) -> Callable:
    """Return `split_at_head` of a model that reads one token."""
    last = get_block(model, model.config.depth - 1)
    start = keras.Model(model.inputs[0], inputs_of(last), name=model.name)
    layers = layers_after_blocks(model)

    def compute(images):
        inputs = start(images, training=False)
        outputs = last(**inputs, training=False, num_queries=1)  # (B, 1, D)
        for layer in layers:
            features, outputs = outputs, layer(outputs)
        return (features if has_head else outputs), outputs

    return compute


def walk_back(model: keras.Model) -> Iterator:
    """Yield the nodes of the graph from the last one to the head.

    The head is the last node with weights or, without one, the last node that
    joins several inputs.
    """
    tensor = model.outputs[0]
    while True:
        operation, index, _ = tensor._keras_history
        node = operation._inbound_nodes[index]
        yield node
        if has_weights(operation) or len(node.input_tensors) != 1:
            return
        (tensor,) = node.input_tensors


def has_weights(operation) -> bool:
    """Return whether a layer or another operation has weights."""
    return bool(getattr(operation, "weights", ()))


def is_graph(operation) -> bool:
    """Return whether it is a graph of layers with one input and one output."""
    return (
        isinstance(operation, keras.Model)
        and len(getattr(operation, "inputs", None) or ()) == 1
        and len(operation.outputs) == 1
    )


def is_headless(model: keras.Model) -> bool:
    """Return whether it is a VisionTransformer without a classifier."""
    return isinstance(model, VisionTransformer) and not model.config.num_classes


def reads_one_token(model: keras.Model) -> bool:
    """Return whether only the class token of the last block is read."""
    return (
        isinstance(model, VisionTransformer)
        and (layer_class := POOLINGS[model.config.pooling]) is not None
        and layer_class.reads_first_alone
        and not is_quantized(model)
    )


CLASSIFIER_OUTPUTS = ("logits", "probabilities")  # (B, classes).
# What outputs for each pixel, (B, H, W, C), are about.
PIXEL_TASKS = {"pixel_logits": "segment", "depths": "depth"}
OUTPUTS = (*CLASSIFIER_OUTPUTS, "features", *PIXEL_TASKS)
# The functions that turn logits into probabilities.
CLASSIFIER_ACTIVATIONS = {
    "softmax": keras.ops.softmax,
    "sigmoid": keras.ops.sigmoid,
}


@dataclasses.dataclass(frozen=True)
class RecordedPass:
    """The results of a forward pass, which can be differentiated.

    `scores` (B, K, T, T) and `tokens` (B, T, D) of each block, the `logits`
    (B, C), or the last tokens of a model without logits, and `pull_back`, see
    `kernels.record`.
    """

    scores: list
    tokens: list
    logits: object
    pull_back: Callable

    def score_gradients(self, classes=None) -> list:
        """Return the gradients of logits by the scores, for each block.

        Args:
            classes: (B,), integers, or None for the most probable classes.
        """
        if classes is None:
            classes = ops.argmax(self.logits, axis=-1)
        # The sum over images separates, because the logit of an image depends
        # only on the attention in that image.
        mask = ops.one_hot(
            classes, self.logits.shape[-1], dtype=self.logits.dtype
        )
        return self.pull_back(mask)


def record_pass(model: VisionTransformer, images) -> RecordedPass:
    """Run a model once, for any number of gradients by its attention.

    To get the gradients, zeros are added to the probabilities of each block,
    and the logits are differentiated with respect to these zeros.
    """
    entered = first, positions = enter_blocks(model, images)
    blocks = range(len(positions))
    batch, length, _ = ops.shape(first)
    shape = (batch, model.config.num_heads, length, length)
    shifts = [
        ops.zeros(shape, get_block(model, i).compute_dtype) for i in blocks
    ]

    def compute_logits(shifts):
        changes = [lambda weights, by=by: weights + by for by in shifts]
        steps = run_blocks(model, images, blocks, changes, entered)
        tokens, scores = zip(*steps)
        x = tokens[-1]
        logits = read_logits(model, x) if has_logits(model) else x
        return logits, (list(scores), list(tokens))

    logits, (scores, tokens), pull_back = record(compute_logits, shifts)
    return RecordedPass(scores, tokens, logits, pull_back)


def read_logits(model: VisionTransformer, tokens):
    """Return the logits (B, C) for the tokens (B, T, D) of the last block."""
    *before, head = layers_after_blocks(model)
    x = tokens
    for layer in before:
        x = layer(x)
    if head.activation is keras.activations.linear:
        return head(x)
    if isinstance(head, DistilledHead):
        return sum(head.both_logits(x)) / 2
    return ops.add(
        ops.matmul(ops.cast(x, head.compute_dtype), head.kernel), head.bias
    )


def has_logits(model: VisionTransformer) -> bool:
    """Return whether `model` computes one vector of logits for an image."""
    config = model.config
    return bool(config.num_classes) and config.pooling != "none"


def check_has_logits(model: VisionTransformer):
    """Raise a ValueError unless the logits of an image can be read."""
    check_vision_transformer(model)
    config = model.config
    if not has_logits(model):
        raise ValueError(
            "`model` must have a head and a pooling. Received: "
            f"num_classes={config.num_classes}, pooling={config.pooling!r}"
        )
    head = model.get_layer("predictions")
    linear = head.activation is keras.activations.linear
    if head.quantization_mode is not None and not linear:
        raise ValueError(
            "The logits of a quantised head with an activation cannot be "
            "read; use `with_classifier_activation(None)` before quantising. "
            f"Received: quantization_mode={head.quantization_mode!r}"
        )
