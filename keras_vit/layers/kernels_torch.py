"""PyTorch: short ways for eager calls, and its own kernels.

Eager PyTorch waits for Python: each `__call__` of Keras takes about 0.1 ms of
a processor, and ViT-S/16 has 175 layers. For each function, see kernels.py.
"""

import functools
import math
from collections.abc import Callable

import keras
import numpy as np
import torch
from keras import ops
from torch._C._functorch import is_functorch_wrapped_tensor

without_gradients = torch.no_grad
# Below it, two products are faster than fused attention in bfloat16.
MOST_TOKENS_OF_PRODUCTS = 800


def call(layer: keras.layers.Layer, x, *tensors, **arguments):
    """Return layer(x, ...), called from within another layer.

    The checks and conversions of `__call__` have been done for the outer
    layer, so only `call` remains.
    """
    function = layer.call if _is_prepared(layer, x) else layer
    return function(x, *tensors, **arguments)


def dense(layer: keras.layers.Dense, x):
    """Return layer(x), the bias added within the product."""
    if not _is_product(layer, x):
        return layer(x)
    return _project(x, *_weights_of(layer, x.dtype))


def activate_dense(layer, x, name: str, function: Callable, training):
    """Return the activation of layer(x), a GELU within oneDNN's product.

    PyTorch's own tanh GELU takes four times as long as its exact one.
    """
    if (
        torch.compiler.is_compiling()  # It joins operations itself.
        or not _can_overwrite(name, training)
        or not _is_product(layer, x)
    ):
        return activate(name, function, dense(layer, x), training, layer)
    kernel, bias = _weights_of(layer, x.dtype)
    if find_onednn_product(x, kernel, bias):
        return _run_onednn(bias, x, kernel, "gelu", APPROXIMATE[name])
    x = _project(x, kernel, bias)
    return activate(name, function, x, training, layer)


def _project(x, kernel, bias):
    multiply = find_onednn_product(x, kernel, bias)
    if multiply:
        return multiply(bias, x, kernel)
    return x @ kernel if bias is None else torch.addmm(bias, x, kernel)


def _is_product(layer, x):
    """Return whether `layer(x)` is a product and a bias alone."""
    is_linear = layer.activation is keras.activations.linear
    return is_linear and _is_prepared(layer, x)


def _weights_of(layer, dtype):
    """Return the kernel and the bias, or None, of a dense layer in a type."""
    kernel = layer.kernel  # With the LoRA update, if there is one.
    kernel = getattr(kernel, "value", kernel).to(dtype)
    return kernel, None if layer.bias is None else layer.bias.value.to(dtype)


# GELUs of ACTIVATIONS, as PyTorch calls them.
APPROXIMATE = {"tanh": "tanh", "exact": "none"}


def _can_overwrite(name, training):
    """Return whether this is a GELU whose argument no gradient needs."""
    return name in APPROXIMATE and not training and not torch.is_grad_enabled()


def _is_prepared(layer, x):
    """Return whether `layer.call(x)` does all that `layer(x)` would."""
    return (
        ops.is_tensor(x)  # And not a symbolic one.
        and keras.backend.standardize_dtype(x.dtype) == layer.compute_dtype
        and layer.quantization_mode is None
        and layer.activity_regularizer is None
        # Hooks, which users register to inspect a layer.
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and not (layer._backward_hooks or layer._backward_pre_hooks)
    )


def run_graph(model: keras.Model, images, training):
    """Return the output of a functional model, computed layer by layer.

    Keras keeps the outputs of all layers until the last one is computed. Here
    each is freed after the last layer that reads it, so the next one takes its
    place in memory. Returns None if these are no images of the shape of the
    model, or a graph is built of them.
    """
    (start,), (end,) = model.inputs, model.outputs
    is_array = isinstance(images, np.ndarray) or ops.is_tensor(images)
    if not is_array or len(images.shape) != 4:
        return None
    if any(want not in (None, n) for want, n in zip(start.shape, images.shape)):
        return None  # Keras names what is wrong.
    compute_dtype = model.compute_dtype
    tensors = {id(start): ops.convert_to_tensor(images, start.dtype)}
    nodes = [layer._inbound_nodes[0] for layer in model.layers[1:]]
    last_reader = {id(x): node for node in nodes for x in node.input_tensors}
    for node in nodes:
        inputs, arguments = node.arguments.fill_in(tensors)
        for x in node.input_tensors:
            if last_reader[id(x)] is node:
                tensors.pop(id(x), None)
        if node.operation._call_has_training_arg:
            arguments = {**arguments, "training": training}
        if node.operation.compute_dtype == compute_dtype:
            outputs = call(node.operation, *inputs, **arguments)
        else:  # Keras must cast its weights to another type.
            outputs = node.operation(*inputs, **arguments)
        found = keras.tree.flatten(outputs)
        tensors |= {id(x): y for x, y in zip(node.outputs, found)}
    return tensors[id(end)]


def reshape(x, shape: tuple):
    """Return ops.reshape(x, shape).

    In eager PyTorch, Keras' own takes longer than all else in its call: it
    looks for symbolic tensors in `shape`. With no images, -1 would be open.
    """
    if x.shape[0] == 0 and shape[0] == -1:
        shape = (0, *shape[1:])
    return x.reshape(shape) if ops.is_tensor(x) else ops.reshape(x, shape)


def pad(x, widths):
    """Return ops.pad(x, widths): zeros around a tensor or a variable.

    Each call of Keras' own makes an operation with a new name, for which
    `torch.compile` would compile the model again.
    """
    if isinstance(x, keras.KerasTensor):
        return ops.pad(x, widths)
    # PyTorch begins with the last axis.
    flat = [width for pair in reversed(widths) for width in pair]
    return torch.nn.functional.pad(ops.convert_to_tensor(x), flat)


def constant(array, dtype: str):
    """Return an array as a tensor; torch.compile cannot compile conversions."""
    return ops.convert_to_tensor(array, dtype)


def layer_norm(function, tokens, gamma, beta, *, epsilon, dtype, training):
    """Return the norm by PyTorch's own kernel, which is faster."""
    if tokens.device.type != "cpu":
        # Other devices want weights of the same type, and rounding those
        # would be wrong. A CPU computes in float32, with such weights.
        tokens = ops.cast(tokens, gamma.dtype)
    x = torch.nn.functional.layer_norm(
        tokens, tokens.shape[-1:], gamma, beta, epsilon
    )
    return ops.cast(x, dtype)


def activate(name: str, function: Callable, x, training, overwrite=None):
    """Return the activation of a tensor, a GELU in the memory of the tensor.

    So the system need not find new memory for the result, which is the largest
    tensor of a block.
    """
    if overwrite is None or not _can_overwrite(name, training):
        return function(x)
    if not _is_prepared(overwrite, x):
        return function(x)
    if name == "tanh" and _is_plain(x):
        return _overwrite_by_gelu(x)
    return torch.ops.aten.gelu_(x, approximate=APPROXIMATE[name])


def _is_plain(x):
    """Return whether `x` is an array of float32 in a call that runs."""
    return (
        type(x) is torch.Tensor
        and (x.dtype, x.device.type) == (torch.float32, "cpu")
        and x.is_contiguous()
        and not (torch.jit.is_tracing() or torch.compiler.is_compiling())
        and not is_functorch_wrapped_tensor(x)
    )


NUMBERS_IN_CACHE = 2**17


def _overwrite_by_gelu(x):
    """Overwrite `x` by x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).

    That is the GELU with tanh, in two thirds of the time of PyTorch's own.
    """
    linear = torch.tensor(2 * math.sqrt(2 / math.pi))
    cubic = 0.044715 * linear.item()
    for part in x.view(-1).split(NUMBERS_IN_CACHE):
        slope = torch.addcmul(linear, part, part, value=cubic)
        part.mul_(slope.mul_(part).sigmoid_())
    return x


def record(function: Callable, tensors: list) -> tuple:
    """Run a function; return its results and a function for its gradients."""
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    with torch.enable_grad():
        value, extra = function(tensors)

    def pull_back(by):
        return list(torch.autograd.grad(value, tensors, by, retain_graph=True))

    return value, extra, pull_back


def attend(query, key, value, num_heads, mask, bias):
    """Return attention by PyTorch's fused kernel, or None."""
    if not key.shape[0]:
        return None  # The kernel does not broadcast a query to no images.
    is_half = keras.backend.standardize_dtype(query.dtype) == "float16"
    if mask is not None and is_half:
        # A masked score needs a bias so low that adding the product does not
        # change it. In float16 there is no such number.
        return None
    if mask is not None:
        # A mask of True and False would give zeros if no key is allowed.
        shift = ops.cast(ops.where(mask, 0.0, -1e9), query.dtype)
        bias = shift if bias is None else shift + ops.cast(bias, query.dtype)
    elif bias is not None:
        bias = ops.cast(bias, query.dtype)
    heads = (
        x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for x in (query, key, value)
    )
    if products_are_faster(query):
        x = attend_by_products(*heads, bias)
    else:
        x = torch.nn.functional.scaled_dot_product_attention(*heads, bias)
    return x.transpose(1, 2).flatten(2)  # From (B, K, S, D/K).


def products_are_faster(query) -> bool:
    """Measured: the fused kernel multiplies bfloat16 slowly without AMX."""
    return (
        HAS_PLAIN_BFLOAT16
        and query.device.type == "cpu"
        and query.dtype == torch.bfloat16
        and query.shape[1] <= MOST_TOKENS_OF_PRODUCTS
    )


def attend_by_products(query, key, value, bias):
    """PyTorch's softmax of bfloat16 computes in float32 and rounds once."""
    query = query * query.shape[-1] ** -0.5
    logits = query @ key.transpose(-1, -2)  # (B, K, S, T)
    if bias is not None:
        logits = logits + bias
    return torch.softmax(logits, dim=-1) @ value  # (B, K, S, D/K)


def find_onednn_product(x, y, bias=None) -> Callable | None:
    """Return the function that multiplies two tensors by oneDNN, or None.

    PyTorch computes products of float32 by MKL. On AMD's processors with
    AVX-512, MKL takes twice as long as oneDNN. Those of bfloat16 it computes
    by oneDNN's products of any matrices, which with AMX take up to 1.3 times
    as long as those of layers. `torch.backends.mkldnn.flags(enabled=False)`
    turns it off, unless the model is compiled. The function is like
    `torch.addmm`, of the bias, or None, and two matrices.
    """
    is_narrow = x.dtype == torch.bfloat16
    if not (HAS_AMX if is_narrow else ONEDNN_IS_FASTER):
        return None
    tensors = (x, y) if bias is None else (x, y, bias)
    # A subclass of tensors may stand for more than its numbers.
    is_usual = all(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype == x.dtype
        and tensor.device.type == "cpu"
        for tensor in tensors
    )
    is_usual = is_usual and x.dtype in (torch.float32, torch.bfloat16)
    # An exported model must run without this package.
    if not is_usual or torch.jit.is_tracing() or torch.compiler.is_exporting():
        return None
    if torch.compiler.is_compiling():
        return None if is_narrow else COMPILED_PRODUCT
    if torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled:
        return None
    # oneDNN takes no empty matrices, and no tensors that `torch.func`
    # transforms.
    if not x.numel() or any(map(is_functorch_wrapped_tensor, tensors)):
        return None
    return Product.apply


def _multiply(bias, x, y):
    return _run_onednn(bias, x, y, "none", "")


def _run_onednn(bias, x, y, activation: str, algorithm: str):
    # The weights of oneDNN are (outputs, inputs).
    return torch.ops.mkldnn._linear_pointwise(
        x, y.t(), bias, activation, [], algorithm
    )


def _keep_inputs(ctx, inputs, output):
    """Keep what the derivatives of a product need."""
    _, x, y = inputs
    ctx.save_for_backward(x, y)


def _compute_gradients(ctx, upstream, multiply):
    """Return the gradients of the bias and of both matrices."""
    x, y = ctx.saved_tensors
    if x.dtype == torch.bfloat16:
        # With few columns, oneDNN's layers are slower here.
        multiply = _multiply_plainly
    needs_bias, needs_x, needs_y = ctx.needs_input_grad
    return (
        upstream.sum(0) if needs_bias else None,
        multiply(None, upstream, y.t()) if needs_x else None,
        multiply(None, x.t(), upstream) if needs_y else None,
    )


def _multiply_plainly(bias, x, y):
    return x @ y


class Product(torch.autograd.Function):
    """The product for a model that is not compiled, differentiable twice."""

    forward = staticmethod(_multiply)
    setup_context = staticmethod(_keep_inputs)

    @staticmethod
    def backward(ctx, upstream):
        """Return the gradients of the bias and of both matrices."""
        return _compute_gradients(ctx, upstream, Product.apply)


def define_operation() -> Callable:
    """Return the product for `torch.compile`, which does not look into it."""
    multiply = torch.library.custom_op(
        "keras_vit::multiply",
        _multiply,
        mutates_args=(),
        schema="(Tensor? bias, Tensor x, Tensor y) -> Tensor",
    )
    multiply.register_fake(
        lambda bias, x, y: x.new_empty(x.shape[0], y.shape[1])
    )
    multiply.register_autograd(
        functools.partial(_compute_gradients, multiply=multiply),
        setup_context=_keep_inputs,
    )
    return multiply


# Found once: torch.compile could not look them up within a graph.
FEATURES = torch.cpu.get_capabilities()
# The processor multiplies bfloat16, but not whole tiles (AMX).
HAS_PLAIN_BFLOAT16 = bool(
    FEATURES.get("avx512_bf16") and not FEATURES.get("amx_tile")
)
HAS_ONEDNN = bool(
    torch.backends.mkldnn.is_available()
    and hasattr(torch.compiler, "is_exporting")  # 2.7
)
HAS_AMX = HAS_ONEDNN and bool(FEATURES.get("amx_tile"))
ONEDNN_IS_FASTER = bool(
    HAS_ONEDNN
    and FEATURES.get("cpu_name", "").startswith("AMD")
    and FEATURES.get("avx512_f")
)
COMPILED_PRODUCT = define_operation() if ONEDNN_IS_FASTER else None
