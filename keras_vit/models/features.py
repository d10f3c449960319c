"""The features before the head of a model, and the kind of its outputs."""

from collections.abc import Callable, Iterator

import keras
from keras import ops

from keras_vit.layers.attention import attend
from keras_vit.layers.dtypes import is_quantized
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.transformer_block import TransformerBlock
from keras_vit.models.intermediates import (
    block_tokens,
    get_block,
    layers_after_blocks,
)
from keras_vit.models.position_inputs import position_layers
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.tables import pick


def name_output(model: keras.Model, output: str | None = None) -> str:
    """Return the kind of the outputs of `model`, one of OUTPUTS.

    Without `output`, the kind is inferred from the last operation that changes
    the values: a softmax or sigmoid returns probabilities, a linear layer with
    weights returns logits, and anything else returns features. So do outputs
    of another shape than (B, C), such as those of each pixel.

    Args:
        model: A model with one input and one output.
        output: The kind of output, if the caller knows it; None to infer it.

    Raises:
        ValueError: If `output` is unknown.
    """
    if output is not None:
        pick(dict.fromkeys(OUTPUTS), output, "output")
        return output
    if len(model.output_shape) != 2:
        return "features"
    kind, has_kernel = last_change(model)
    if kind in CLASSIFIER_ACTIVATIONS:
        return "probabilities"
    return "logits" if has_kernel and kind == "linear" else "features"


def name_activation(model: keras.Model) -> str | None:
    """Return the function that turns logits into the outputs of `model`.

    Args:
        model: Any model. The layers of one that is not a graph of one input
            and one output are unknown.

    Returns:
        A key of CLASSIFIER_ACTIVATIONS, or None.
    """
    if not is_graph(model):
        return None
    kind, _ = last_change(model)
    return kind if kind in CLASSIFIER_ACTIVATIONS else None


def last_change(model: keras.Model) -> tuple[str, bool]:
    """Return the last function that changes the values of the outputs.

    Args:
        model: A model with one input and one output.

    Returns:
        Its name, in lower case, and whether it is that of a layer with
        weights. The name is "" for a VisionTransformer without a classifier.
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
    """Return the model from its input to the features before its head.

    Both models share their layers. A model that already returns features is
    returned unchanged.

    Shapes:
        The model returned maps images (B, H, W, C) to features (B, D).

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
    if name_output(model) == "features":
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

    Args:
        model: A functional or Sequential model with one input and one output.
        has_head: Whether the features are the input of the head, rather than
            the outputs.
        is_short: Whether the last block may compute only the class token, see
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
    names = position_layers(model.config)[-1]
    positions = {key: model.get_layer(x).output for key, x in names.items()}
    start = keras.Model(
        model.inputs[0],
        {"tokens": block_tokens(last), **positions},
        name=model.name,
    )
    layers = layers_after_blocks(model)

    def compute(images):
        inputs = start(images, training=False)
        outputs = run_for_class_token(last, **inputs)  # (B, 1, D)
        for layer in layers:
            features, outputs = outputs, layer(outputs)
        return (features if has_head else outputs), outputs

    return compute


def run_for_class_token(
    block: TransformerBlock,
    tokens,
    rotation=None,
    bias=None,
    relative_keys=None,
    position_rows=None,
):
    """Return the first output token of a block, without computing the others.

    Its query attends to the keys and values of all tokens.

    Shapes:
        tokens: (B, T, D). returns: (B, 1, D).

    Args:
        block: A built block.
        tokens: The input of the block.
        rotation: Rotary positions, see `MultiHeadSelfAttention`.
        bias: Relative positions, see there.
        relative_keys: The same in another form, see there.
        position_rows: See `TransformerBlock`.
    """
    tokens = ops.convert_to_tensor(tokens, block.compute_dtype)
    if position_rows is not None:
        tokens = tokens + position_rows
    query, key, value = block.attention.compute_qkv(
        block.attention_input(tokens), rotation
    )
    if relative_keys is not None:
        bias = block.attention.add_relative_products(bias, query, relative_keys)
    x = attend(
        query[:, :1],
        key,
        value,
        num_heads=block.attention.num_heads,
        bias=None if bias is None else bias[:, :, :1],
    )  # (B, 1, D)
    attended = block.attention.project_out(x)
    return block.add_mlp(block.add_attended(tokens[:, :1], attended))


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


OUTPUTS = ("logits", "probabilities", "features")
# The functions that turn logits into probabilities.
CLASSIFIER_ACTIVATIONS = {
    "softmax": keras.ops.softmax,
    "sigmoid": keras.ops.sigmoid,
}
