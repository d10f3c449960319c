"""The ResNets of BiT, their files, and fine-tuning from them."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_vit.layers.resize import adapt_channels
from tests.tiny import noise, randomize, to_numpy
from tests.trainers.made import assert_same_weights
from tests.weights.bit_arrays import draw_bit_arrays
from trainers.models.factory import build_model
from trainers.models.initial_model import initial_preprocessing
from trainers.models.resnets import (
    BIT_CHECKPOINTS,
    build_bit_resnet,
    find_bit,
    load_bit_checkpoint,
    rebuild_bit_resnet,
)
from trainers.recipes.baselines import BIT_SIZES, BitSize
from trainers.training.trainer import prepare

# Parameters with 1000 classes, which are in results-imagenet.csv of timm, in
# millions, and number of weights.
GOLDEN = {
    "R50x1": (25_549_352, 153),
    "R152x4": (936_533_224, 459),
    # By the formula of a unit: norms, convolutions, projection.
    "R26x0.25-small": (1_388_344, 81),
}
TINY = BitSize((1, 2), 0.125)


def build(size=TINY, **changes):
    arguments = {"image_size": 32, "num_classes": 5, **changes}
    return build_bit_resnet(size, **arguments)


@pytest.mark.parametrize("name", GOLDEN)
def test_parameters_are_those_of_the_source(name):
    with keras.StatelessScope(initialize_variables=False):
        model = build(BIT_SIZES[name], num_classes=1000)
        count = model.count_params()
    keras.backend.clear_session()
    assert (count, len(model.weights)) == GOLDEN[name]


@pytest.mark.parametrize("size", [33, 32])
def test_the_root_pads_with_zeros(size):
    """Also where all that the pooling sees is negative."""
    model = randomize(build(image_size=size))
    root = keras.Model(model.input, model.get_layer("root_pool").output)
    before = keras.Model(model.input, model.get_layer("root_conv").output)
    x = noise(8, size, size, 3)
    y, maps = to_numpy(root(x)), to_numpy(before(x))
    assert maps.shape[1] == -(-size // 2) and y.shape[1] == -(-size // 4)
    corner = np.maximum(maps[:, :2, :2].max((1, 2)), 0)
    np.testing.assert_array_equal(y[:, 0, 0], corner)
    assert (maps[:, :2, :2].max((1, 2)) < 0).any()


def test_a_small_root_keeps_the_resolution():
    model = build(BitSize((1, 1), 0.125, use_small_root=True), image_size=8)
    assert model.get_layer("root_conv").output.shape == (None, 8, 8, 8)
    assert model.get_layer("stage_01_unit_00").output.shape[1:] == (4, 4, 64)
    # Two channels a group.
    assert model.get_layer("norm").groups == 4


def test_a_model_of_any_size_is_that_of_each():
    model = randomize(build(image_size=None))
    for size in (32, 45):
        fixed = build(image_size=size)
        fixed.set_weights(model.get_weights())
        x = noise(2, size, size, 3)
        np.testing.assert_allclose(
            to_numpy(model(x)), to_numpy(fixed(x)), atol=1e-5
        )


def test_a_new_head_answers_its_bias():
    model = build(head_bias=-3.0, channels=1)
    logits = to_numpy(model(noise(2, 32, 32, 1)))
    np.testing.assert_array_equal(logits, np.full((2, 5), -3.0))


def test_a_saved_model_needs_only_the_package(tmp_path):
    model = randomize(build())
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    x = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))


UNITS, FACTOR = (1, 2), 0.125
OPTIONS = {"image_size": 32, "channels": 3, "num_classes": 7}
HEAD = "resnet/head/conv2d/kernel"
ROOT = "resnet/root_block/standardized_conv2d/kernel"


@pytest.fixture
def arrays():
    return draw_bit_arrays(UNITS, FACTOR)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes arrays to a file."""

    def write(arrays):
        np.savez(tmp_path / "bit.npz", **arrays)
        return tmp_path / "bit.npz"

    return write


def test_every_array_has_its_place(arrays, write):
    model = load_bit_checkpoint(write(arrays), **OPTIONS)
    unit = model.get_layer("stage_01_unit_00")
    for weight, name in (
        (model.get_layer("root_conv").kernel, ROOT),
        (unit.norms[1].beta, "resnet/block2/unit01/b/group_norm/beta"),
        (
            unit.shortcut_conv.kernel,
            "resnet/block2/unit01/a/proj/standardized_conv2d/kernel",
        ),
    ):
        np.testing.assert_array_equal(to_numpy(weight), arrays[name])
    kernel = to_numpy(model.get_layer("predictions").kernel)
    np.testing.assert_array_equal(kernel, arrays[HEAD][0, 0])
    assert len(model.weights) == len(arrays)
    # All of them are different, and none was read twice.
    sums = {float(to_numpy(weight).sum()) for weight in model.weights}
    assert sums == {float(array.sum()) for array in arrays.values()}


def test_other_dialects_are_read(arrays, write):
    """Numbered convolutions, and norms with all axes, as JAX has them."""
    other = {}
    for index, (name, array) in enumerate(arrays.items()):
        if "group_norm" in name:
            array = array[None, None, None]
        numbered = f"standardized_conv2d_{index}"
        if "proj" in name:
            name = name.replace("standardized_conv2d", numbered)
        other[name.removeprefix("resnet/")] = array
    expected = load_bit_checkpoint(write(arrays), **OPTIONS)
    found = load_bit_checkpoint(write(other), **OPTIONS)
    assert_same_weights(found, expected)


@pytest.mark.parametrize(
    ("head", "num_classes", "is_kept"),
    [("auto", 7, True), ("auto", 3, False), ("reset", 7, False)],
)
def test_a_head_for_other_classes_is_replaced(
    arrays, write, head, num_classes, is_kept
):
    options = {**OPTIONS, "num_classes": num_classes}
    model = load_bit_checkpoint(
        write(arrays), **options, head=head, head_bias=-2.0
    )
    kernel, bias = model.get_layer("predictions").get_weights()
    assert kernel.any() == is_kept
    np.testing.assert_array_equal(bias == -2.0, not is_kept)
    norm = model.get_layer("norm").get_weights()[0]
    np.testing.assert_array_equal(norm, arrays["resnet/group_norm/gamma"])


def test_the_first_kernel_is_adapted_to_grey_images(arrays, write):
    options = {**OPTIONS, "channels": 1}
    model = load_bit_checkpoint(write(arrays), **options)
    kernel = model.get_layer("root_conv").get_weights()[0]
    np.testing.assert_array_equal(kernel, adapt_channels(arrays[ROOT], 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("resnet/group_norm/beta"), "missing: group_norm/beta"),
        (lambda a: a.update(step=np.zeros(1)), "left over: step"),
        (
            lambda a: a.update({"resnet/group_norm/beta": np.zeros(5, "f")}),
            r"another shape: group_norm/beta \(5,\) instead of \(64,\)",
        ),
        (
            lambda a: [a.pop(name) for name in list(a) if "block1" in name],
            "missing: .*; left over: ",
        ),
        (
            lambda a: a.update({"group_norm/beta": np.zeros(64, "f")}),
            "two arrays for one weight",
        ),
    ],
)
def test_what_does_not_fit_is_named(arrays, write, change, message):
    change(arrays)
    path = write(arrays)
    with pytest.raises(ValueError, match=f"bit.npz .*{message}"):
        load_bit_checkpoint(path, **OPTIONS)


def test_which_files_are_of_bit(arrays, write, tmp_path, monkeypatch):
    path = write(arrays)
    assert find_bit(str(path)) == path
    np.savez(tmp_path / "vit.npz", **{"embedding/kernel": np.zeros(3)})
    assert find_bit(str(tmp_path / "vit.npz")) is None
    assert find_bit("B/16-i21k") is None
    with pytest.raises(ValueError, match="no file .*absent.npz"):
        find_bit("absent.npz")
    with pytest.raises(ValueError, match="`init_from` must be one of 'BiT-S-"):
        find_bit("BiT-L-R50x1")
    assert len(BIT_CHECKPOINTS) == 18
    # A name is the file of the cache, or downloaded into it.
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    mirror = tmp_path / "mirror/bit_models/BiT-M-R50x1-ILSVRC2012.npz"
    mirror.parent.mkdir(parents=True)
    path.rename(mirror)
    monkeypatch.setenv("KERAS_VIT_MIRROR", (tmp_path / "mirror").as_uri())
    found = find_bit("BiT-M-R50x1-ILSVRC2012")
    assert found == tmp_path / "bit_models/BiT-M-R50x1-ILSVRC2012.npz"
    assert found.read_bytes() == mirror.read_bytes()


def test_a_run_starts_from_a_file_and_another_from_the_run(
    recipe, digits, arrays, write, tmp_path
):
    path = write(arrays)
    first = dataclasses.replace(
        recipe,
        init_from=str(path),
        image_size=16,
        total_steps=1,
        learning_rate=1e-3,
        optimizer="sgd",
        augment="",
        eval_preprocess="",
        eval_split="test[:32]",
        label_smoothing=0.0,
    )
    assert initial_preprocessing(first, 1).normalization == "vit"
    logs = prepare(first, str(tmp_path / "run")).train()
    assert logs["loss"] == pytest.approx(np.log(10), rel=1e-5)
    model_path = tmp_path / "run/model.keras"
    trained = keras.saving.load_model(model_path)
    second = dataclasses.replace(
        first, init_from=str(model_path), image_size=8, precision="bfloat16"
    )
    model = build_model(second, digits)
    assert model.input_shape == (None, 8, 8, 1)
    assert model.layers[-1].compute_dtype == "bfloat16"
    assert_same_weights(model, trained)
    for changes, message in (
        ({"train_only": "head"}, "`train_only` and .* need a VisionTransf"),
        ({"lora_rank": 2}, "`train_only` and .* need a VisionTransf"),
        ({"objective": "autoencoder"}, "'autoencoder' needs a VisionTransf"),
    ):
        wrong = dataclasses.replace(first, **changes)
        with pytest.raises(ValueError, match=message):
            build_model(wrong, digits)


def test_a_rebuilt_model_computes_the_same():
    size = BitSize(UNITS, FACTOR, use_small_root=True)
    model = randomize(build_bit_resnet(size, image_size=16, num_classes=7))
    options = {**OPTIONS, "image_size": 16}
    rebuilt = rebuild_bit_resnet(model, **options)
    x = noise(2, 16, 16, 3)
    np.testing.assert_array_equal(to_numpy(rebuilt(x)), to_numpy(model(x)))
    with pytest.raises(ValueError, match="it is not a BiT ResNet"):
        rebuild_bit_resnet(keras.Sequential(), **OPTIONS)
