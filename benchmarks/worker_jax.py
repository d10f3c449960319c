"""The worker for JAX: ours on this backend, plain JAX, a matrix product."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import keras
import numpy as np

from benchmarks.harness import build_ours, random_batch
from benchmarks.pipe import answer_requests, repeat

# As in optax.adam and Keras.
ADAM = {"rate": 1e-4, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}


def make_functions(case: dict) -> tuple[dict[str, Callable], dict]:
    """Return the functions for `case`, and the versions of the packages."""
    versions = {"jax": jax.__version__, "keras": keras.__version__}
    weights, apply = MODEL_BUILDERS[case["package"]](case)
    step = {"forward": forward_step, "train": train_step}[case["task"]]
    step = step(weights, apply, case)
    return {"step": step, "product": product(case)}, versions


def our_model(case: dict) -> tuple:
    """Return the weights of keras_vit's model, and the function of them."""
    model = build_ours(case)
    weights = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]

    def apply(weights, images, training):
        return model.stateless_call(weights, others, images, training=training)[
            0
        ]

    return weights, apply


def plain_jax_model(case: dict) -> tuple:
    """Return the same model with the operations of the official Flax code.

    Queries, keys and values are products of their own, as in Flax's
    MultiHeadDotProductAttention. Flax itself adds nothing to the graph.
    """
    config = case["config"]
    compute, kept = types(case["precision"])

    def apply(weights, images, training):
        weights = jax.tree.map(lambda w: w.astype(compute), weights)
        return run_plain(weights, images.astype(compute), config["patch_size"])

    return draw_weights(config, kept), apply


def draw_weights(config: dict, dtype: str) -> dict:
    """Return new weights of `plain_model`.

    Args:
        config: The fields of a ViTConfig.
        dtype: The type of the weights.
    """
    width, size = config["width"], config["patch_size"]
    heads = config["num_heads"]
    shape = (width, heads, width // heads)
    rng = np.random.default_rng(0)

    def draw(*shape, fan_in=None):
        values = rng.standard_normal(shape) / math.sqrt(fan_in or shape[0])
        return jnp.asarray(values, dtype)

    def norm():
        return jnp.ones(width, dtype), jnp.zeros(width, dtype)

    def dense(*shape, fan_in=None, bias=None):
        return draw(*shape, fan_in=fan_in), jnp.zeros(bias or shape[-1], dtype)

    cells = [n // size for n in config["image_size"]]
    return {
        "patches": dense(size, size, config["channels"], width),
        "token": draw(1, 1, width),
        "positions": draw(1, math.prod(cells) + 1, width),
        "blocks": [
            {
                "norm_1": norm(),
                **{
                    name: dense(*shape, bias=shape[1:])
                    for name in ("query", "key", "value")
                },
                "out": dense(*shape[1:], width, fan_in=width),
                "norm_2": norm(),
                "hidden": dense(width, config["mlp_dim"]),
                "mlp_out": dense(config["mlp_dim"], width),
            }
            for _ in range(config["depth"])
        ],
        "norm": norm(),
        "head": dense(width, config["num_classes"]),
    }


def run_plain(weights: dict, images, patch_size: int):
    """Return the logits of `plain_model`.

    Shapes:
        images: (B, H, W, C). returns: (B, num_classes), float32.
    """
    kernel, bias = weights["patches"]
    x = jax.lax.conv_general_dilated(
        images,
        kernel,
        (patch_size, patch_size),
        "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    x = (x + bias).reshape(len(images), -1, bias.size)
    token = jnp.tile(weights["token"], (len(images), 1, 1))
    x = jnp.concatenate([token, x], axis=1) + weights["positions"]
    for block in weights["blocks"]:
        y = plain_norm(x, *block["norm_1"])
        query, key, value = (
            jnp.einsum("btd,dke->btke", y, block[name][0]) + block[name][1]
            for name in ("query", "key", "value")
        )
        query = query / math.sqrt(query.shape[-1])
        scores = jax.nn.softmax(jnp.einsum("bske,btke->bkst", query, key))
        y = jnp.einsum("bkst,btke->bske", scores, value)
        kernel, bias = block["out"]
        x = x + jnp.einsum("bske,ked->bsd", y, kernel) + bias
        y = plain_norm(x, *block["norm_2"])
        kernel, bias = block["hidden"]
        y = jax.nn.gelu(y @ kernel + bias)
        kernel, bias = block["mlp_out"]
        x = x + y @ kernel + bias
    kernel, bias = weights["head"]
    y = plain_norm(x, *weights["norm"])[:, 0]
    return (y @ kernel + bias).astype(jnp.float32)


def plain_norm(x, gamma, beta):
    """Return Flax's LayerNorm, which computes the moments in float32."""
    y = x.astype(jnp.float32)
    mean = y.mean(-1, keepdims=True)
    variance = (y * y).mean(-1, keepdims=True) - mean * mean
    y = (y - mean) * jax.lax.rsqrt(variance + 1e-6)
    return (y * gamma + beta).astype(x.dtype)


def forward_step(weights, apply, case: dict) -> Callable[[], object]:
    """Return the compiled inference of a batch."""
    images, _ = batch(case)
    forward = jax.jit(lambda weights, images: apply(weights, images, False))
    return repeat(lambda: forward(weights, images), np.asarray, case["steps"])


def train_step(weights, apply, case: dict) -> Callable[[], object]:
    """Return a compiled training step with cross-entropy and Adam."""
    images, labels = batch(case)

    def loss_of(weights, images, labels):
        logits = apply(weights, images, True).astype(jnp.float32)
        chosen = jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels]
        return -chosen.mean()

    def update(weight, first, second, gradient, count):
        first += (1 - ADAM["beta_1"]) * (gradient - first)
        second += (1 - ADAM["beta_2"]) * (gradient**2 - second)
        scale = jnp.sqrt(1 - ADAM["beta_2"] ** count)
        rate = ADAM["rate"] * scale / (1 - ADAM["beta_1"] ** count)
        step = rate * first / (jnp.sqrt(second) + ADAM["epsilon"])
        return weight - step, first, second

    def train(state, images, labels):
        leaves, firsts, seconds, count = state
        loss, gradients = jax.value_and_grad(loss_of)(
            jax.tree.unflatten(tree, leaves), images, labels
        )
        gradients = jax.tree.leaves(gradients)
        rows = zip(leaves, firsts, seconds, gradients, strict=True)
        leaves, firsts, seconds = zip(
            *(update(*row, count) for row in rows), strict=True
        )
        return (leaves, firsts, seconds, count + 1), loss

    leaves, tree = jax.tree.flatten(weights)
    zeros = [jnp.zeros_like(leaf) for leaf in leaves]
    state = (leaves, zeros, zeros, jnp.float32(1))
    # The weights are updated in place.
    compiled = jax.jit(train, donate_argnums=0)
    state = jax.tree.map(jnp.array, state)

    def step():
        nonlocal state
        state, loss = compiled(state, images, labels)
        return loss

    return repeat(step, float, case["steps"])


def types(precision: str) -> tuple:
    """Return the types of the computation and of the weights."""
    compute = precision.removeprefix("mixed_")
    return compute, "float32" if precision != compute else compute


def batch(case: dict) -> tuple:
    """Return `random_batch` as arrays of JAX."""
    images, labels = random_batch(case)
    return jnp.asarray(images), jnp.asarray(labels)


def product(case: dict) -> Callable[[], object]:
    """Return one product of matrices of `case["matrix_shape"]`."""
    rows, inner, columns = case["matrix_shape"]
    rng = np.random.default_rng(0)
    a, b = (
        jnp.asarray(rng.uniform(-1, 1, shape), case["matrix_dtype"])
        for shape in ((rows, inner), (inner, columns))
    )
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(a, b).block_until_ready()


def find_gpu() -> tuple[str, Callable[[], int]] | None:
    """Return the name of the GPU, and a function that returns peak bytes."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        return None
    return device.device_kind, lambda: device.memory_stats()[
        "peak_bytes_in_use"
    ]


MODEL_BUILDERS = {"ours": our_model, "plain-jax": plain_jax_model}

if __name__ == "__main__":
    answer_requests(make_functions, find_gpu)
