"""Products of float32 matrices by oneDNN, in PyTorch on AMD's processors.

PyTorch computes these products by MKL. On AMD's processors with AVX-512, MKL
takes twice as long as oneDNN, by which PyTorch computes those of bfloat16.
"""

import functools

import keras


def find_onednn_product(x, y):
    """Return the function that multiplies two tensors by oneDNN, or None.

    `torch.backends.mkldnn.flags(enabled=False)` turns it off, unless the
    model is compiled.

    Args:
        x: A tensor of PyTorch.
        y: Another one.

    Returns:
        A function like `torch.addmm`: it takes the bias, or None, and two
        matrices. None where PyTorch's own product is as fast or must be used.
    """
    if not IS_FASTER:
        return None
    import torch

    # A subclass of tensors may stand for more than its numbers.
    is_usual = all(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        for tensor in (x, y)
    )
    # An exported model must run without this package.
    if not is_usual or torch.jit.is_tracing() or torch.compiler.is_exporting():
        return None
    if torch.compiler.is_compiling():
        return COMPILED_PRODUCT
    if torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled:
        return None
    return _make_product()


def _multiply(bias, x, y):
    import torch

    # The weights of oneDNN are (outputs, inputs).
    return torch.ops.mkldnn._linear_pointwise(x, y.t(), bias, "none", [], "")


def _keep_inputs(ctx, inputs, output):
    """Keep what the derivatives of a product need."""
    _, x, y = inputs
    ctx.save_for_backward(x, y)
    ctx.save_for_forward(x, y)


def _compute_gradients(ctx, upstream, multiply):
    """Return the gradients of the bias and of both matrices."""
    x, y = ctx.saved_tensors
    needs_bias, needs_x, needs_y = ctx.needs_input_grad
    return (
        upstream.sum(0) if needs_bias else None,
        multiply(None, upstream, y.t()) if needs_x else None,
        multiply(None, x.t(), upstream) if needs_y else None,
    )


@functools.cache
def _make_product():
    """Return the product for a model that is not compiled.

    All transformations of `torch.func` work with it.
    """
    import torch

    class Product(torch.autograd.Function):
        """The product; its gradients are such products as well."""

        forward = staticmethod(_multiply)
        setup_context = staticmethod(_keep_inputs)

        @staticmethod
        def backward(ctx, upstream):
            """Return the gradients of the bias and of both matrices."""
            return _compute_gradients(ctx, upstream, Product.apply)

        @staticmethod
        def jvp(ctx, bias, x, y):
            """Return the derivative in the direction of these tensors."""
            kept_x, kept_y = ctx.saved_tensors
            terms = [
                bias,
                None if x is None else x @ kept_y,
                None if y is None else kept_x @ y,
            ]
            return sum(term for term in terms if term is not None)

        @staticmethod
        def vmap(info, axes, bias, x, y):
            """Return the products of a batch, by PyTorch's own operations."""

            def multiply_one(bias, x, y):
                return x @ y if bias is None else torch.addmm(bias, x, y)

            return torch.vmap(multiply_one, axes)(bias, x, y), 0

    return Product.apply


def _define_operation():
    """Return the product for `torch.compile`, which does not look into it."""
    import torch

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


def _is_faster():
    """Whether PyTorch runs on a processor of AMD with AVX-512."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    has_parts = torch.backends.mkldnn.is_available()
    has_parts = has_parts and hasattr(torch.compiler, "is_exporting")  # 2.7
    if not has_parts:
        return False
    features = torch.cpu.get_capabilities()
    is_amd = features.get("cpu_name", "").startswith("AMD")
    return is_amd and bool(features.get("avx512_f"))


# Found once: torch.compile could not look them up within a graph.
IS_FASTER = _is_faster()
COMPILED_PRODUCT = _define_operation() if IS_FASTER else None
