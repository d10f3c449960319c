"""Eight processors of JAX are eight devices in a process of their own."""

import json

import keras
import pytest

from keras_vit.distribution import layout_map
from tests import commands
from tests.tiny import LATER_KINDS

# Compiling takes most of the time, and the models are small.
XLA_FLAGS = (
    "--xla_force_host_platform_device_count=8 "
    "--xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1 "
    "--xla_cpu_use_fusion_emitters=false"
)
# Between them, all parts of other kinds that a mesh splits.
KINDS = {
    "plain": {},
    "map": {"pooling": "map", "representation_size": 8, "num_registers": 2},
    "later": {**LATER_KINDS["eva02"], **LATER_KINDS["beit"]},
}
TRAINING = """
import json
import jax, keras, numpy as np
from keras_vit import VisionTransformer
from keras_vit.distribution import layout_map
from tests.test_distribution import FORMS, KINDS, mesh_of
from tests.tiny import noise, randomize, tiny_config

def train(kind, distribution=None):
    keras.distribution.set_distribution(distribution)
    depth = 2 if kind == "plain" else 1
    config = tiny_config(depth=depth, **KINDS[kind])
    model = randomize(VisionTransformer(config))
    # With its small default, Adam would enlarge differences of rounding.
    optimizer = keras.optimizers.Adam(1e-2, epsilon=1e-2)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True))
    images, labels = noise(40, 32, 32, 3), np.arange(40) % 7
    # Five updates of eight images.
    model.fit(images, labels, batch_size=8, shuffle=False, verbose=0)
    assert int(optimizer.iterations) == 5
    return model, model.trainable_variables + optimizer.variables[2:]

found = {}
for kind in KINDS:
    alone, _ = train(kind)
    for form in FORMS if kind == "plain" else ["both"]:
        spread = keras.distribution.ModelParallel(
            layout_map=layout_map(
                mesh_of(form), fully_sharded=form != "tensor"
            ),
            batch_dim_name="batch",
        )
        model, kept = train(kind, spread)
        found[f"{kind} {form}"] = {
            "difference": max(
                float(np.abs(a - b).max())
                for a, b in zip(alone.get_weights(), model.get_weights())
            ),
            "numbers": sum(
                shard.data.size
                for variable in kept
                for shard in variable.value.addressable_shards
                if shard.device == jax.devices()[3]
            ),
        }
print(json.dumps(found))
"""
# The shape of the mesh of each way to split a model.
FORMS = {
    "tensor": {"batch": 2, "model": 4},
    "fully_sharded": {"batch": 8},
    "both": {"batch": 2, "model": 4},
}


def mesh_of(form):
    """Return the mesh of the eight devices."""
    sizes = FORMS[form]
    return keras.distribution.DeviceMesh(
        tuple(sizes.values()), list(sizes), keras.distribution.list_devices()
    )


def numbers_on_a_device(form):
    """Return how many numbers a device keeps of the plain tiny model.

    Each weight has three: its value and two moments of Adam.
    """
    batch, model = (FORMS[form].get(axis, 1) for axis in ("batch", "model"))
    width, mlp, classes, patches, depth = 24, 48, 7, 16, 2
    data = batch if form != "tensor" else 1
    kernels = width * 3 * width + width * width + 2 * width * mlp
    block = (
        kernels // (data * model)
        + (3 * width + mlp) // model  # Biases of what is split by its outputs.
        + 2 * width  # The other biases.
        + 4 * width  # Two norms.
    )
    split = (8 * 8 * 3 + patches + 1) * width + width * classes
    kept = width + width + 2 * width + classes  # Biases, token, norm.
    return 3 * (depth * block + split // data + kept)


@pytest.mark.slow
def test_training_on_many_devices_is_that_on_one():
    choice = {"KERAS_BACKEND": "jax", "XLA_FLAGS": XLA_FLAGS}
    done = commands.run(["-c", TRAINING], commands.environment() | choice)
    assert not done.returncode, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(FORMS) + len(KINDS) - 1
    for name, values in found.items():
        assert values["difference"] < 1e-5, name
    for form in FORMS:
        assert found[f"plain {form}"]["numbers"] == numbers_on_a_device(form)


def mesh(*names):
    return keras.distribution.DeviceMesh((1,) * len(names), names, ["cpu:0"])


def test_a_mesh_that_splits_no_weights_is_refused():
    with pytest.raises(ValueError, match="set `fully_sharded=True`"):
        layout_map(mesh("batch"))
    with pytest.raises(ValueError, match="must have one axis.*'a', 'b', 'c'"):
        layout_map(mesh("a", "b", "c"))


def test_the_names_of_the_axes_are_those_of_the_mesh():
    layouts = layout_map(mesh("images", "features"), fully_sharded=True)
    path = "outer/block_07/attention/out/kernel"
    assert list(layouts[path].axes) == ["features", "images"]
    assert layouts["block_00/mlp_norm/gamma"] is None
