import textwrap

import keras
import pytest
from keras import layers

from keras_vit.models import VisionTransformer
from tests import commands
from tests.tiny import tiny_config
from trainers.optim.optimizers import make_optimizer
from trainers.training.memory import estimate_memory


def model_of(*stack, shape=(8, 6, 4)):
    return keras.Sequential([keras.Input(shape), *stack])


def chain(depth):
    """Return a model whose every layer keeps its output for the way back."""
    stack = [layers.Dense(64, "tanh") for _ in range(depth)]
    return model_of(layers.Flatten(), *stack, shape=(8, 8, 1))


def estimate(model, batch_size, optimizer="adamw", **choices):
    parts = choices.pop("accumulation_steps", 1)
    optimizer = make_optimizer(
        optimizer, model.trainable_variables, 0.1, **choices
    )
    return estimate_memory(
        model, batch_size, optimizer, accumulation_steps=parts
    )


@pytest.mark.parametrize(
    "optimizer, dtype, num_bytes",
    [
        ("adamw", "float32", 8 * (64 * 64 + 64)),
        ("adamw", "bfloat16", 6 * (64 * 64 + 64)),
        ("lion", "float32", 4 * (64 * 64 + 64)),
        ("sgd", "bfloat16", 2 * (64 * 64 + 64)),
        # A row and a column for the second moment of the kernel.
        ("adafactor", "bfloat16", 2 * 64 * 64 + 4 * 2 * 64 + 6 * 64),
    ],
)
def test_memory_of_the_optimizer_is_that_of_its_slots(
    optimizer, dtype, num_bytes
):
    memory = estimate(chain(1), 2, optimizer, accumulator_dtype=dtype)
    assert memory.optimizer == num_bytes


def test_memory_of_a_chain_is_the_closed_form():
    # At the top of the layers: the images, an output each, the gradient of
    # the last one and that of what is under its tanh.
    for depth in (3, 7):
        images = (3 + depth) * 16 * 64 * 4
        assert estimate(chain(depth), 16).activations == images


def test_memory_of_the_largest_of_several_runs_and_of_a_teacher():
    model = chain(3)
    optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
    runs = [lambda x, training, n=n: model(x[:n]) for n in (1, 4, 2)]
    several = estimate_memory(model, 8, optimizer, runs=runs, frozen=[chain(2)])
    alone = [
        estimate_memory(model, 8, optimizer, runs=[run]).activations
        for run in runs
    ]
    assert several.activations == alone[1] == max(alone) > alone[2]
    plain = estimate_memory(model, 8, optimizer)
    assert plain.activations > several.activations
    assert several.weights == plain.weights + 4 * 2 * (64 * 64 + 64)


def test_frozen_layers_keep_nothing_for_the_way_back():
    """With the last of three layers trained, only its input is kept.

    At the top: the images, its input, its output, the gradient of the output
    and that of what is under its tanh.
    """
    model = chain(3)
    for layer in model.layers[:-1]:
        layer.trainable = False
    assert estimate(model, 16).activations == 5 * 16 * 64 * 4


def test_memory_of_an_update_in_parts():
    whole, half, parts = (
        estimate(chain(3), *batch, accumulation_steps=n)
        for *batch, n in ((16, 1), (8, 1), (16, 2))
    )
    assert parts.activations == half.activations < whole.activations
    assert parts.gradients == 2 * whole.gradients


def test_a_block_keeps_what_its_products_and_norms_read():
    sizes = {"width": 128, "mlp_dim": 512, "num_heads": 2}
    two, three = (
        estimate(VisionTransformer(tiny_config(depth=n, **sizes)), 8)
        for n in (2, 3)
    )
    # Of 17 tokens with 128 numbers: the inputs of the norms (2), their outputs
    # (2), queries, keys and values (3), the output of the heads (1) and the
    # hidden layer before and after the activation (8). And the attention of
    # two heads.
    kept = 16 * 17 * 128 + 2 * 17 * 17
    assert three.activations - two.activations == 8 * 4 * kept
    model = VisionTransformer(tiny_config())
    one, four = (estimate(model, n).activations for n in (8, 32))
    assert four == pytest.approx(4 * one, rel=0.01)


def test_a_rematerialised_block_keeps_its_input_only():
    changes = {"dropout_rate": 0.1, "use_remat": True}
    two, three = (
        VisionTransformer(tiny_config(depth=n, **changes)) for n in (2, 3)
    )
    kept = estimate(three, 8).activations - estimate(two, 8).activations
    assert kept == 8 * 17 * 24 * 4


@pytest.mark.slow
def test_memory_is_that_of_a_real_step(subprocess_environment):
    program = """
        import dataclasses
        import resource

        import keras
        import tensorflow as tf

        from keras_vit.models import VARIANTS, VisionTransformer
        from trainers.training.memory import estimate_memory
        from trainers.optim.optimizers import make_optimizer

        model = VisionTransformer(
            dataclasses.replace(
                VARIANTS["Ti/16"].config, dropout_rate=0.1, depth=4
            )
        )

        @tf.function
        def compute_gradients(images):
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
            weights = [v.value for v in model.trainable_variables]
            gradients = tape.gradient(logits, weights)
            return tf.clip_by_global_norm(gradients, 1.0)

        images = tf.random.normal((16, 224, 224, 3))
        compute_gradients.get_concrete_function(images)
        with open("/proc/self/statm") as file:
            before = int(file.read().split()[1]) * resource.getpagesize()
        compute_gradients(images)
        # Not of getrusage, which counts the process that started this one.
        with open("/proc/self/status") as file:
            peak = 1024 * int(file.read().split("VmHWM:")[1].split()[0])
        optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
        memory = estimate_memory(model, 16, optimizer)
        print(peak - before, memory.gradients + memory.activations)
    """
    words = ["-c", textwrap.dedent(program)]
    result = commands.run(words, subprocess_environment)
    assert result.returncode == 0, result.stderr[-2000:]
    measured, estimated = map(int, result.stdout.split())
    assert 0.85 * estimated < measured < 1.25 * estimated + 0.2e9
