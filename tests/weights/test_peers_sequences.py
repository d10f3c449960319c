"""Sequences of patches with their places, judged by timm and transformers."""

import numpy as np
import pytest
from PIL import Image

from keras_vit import (
    FlexibleVisionTransformer,
    from_checkpoint,
    preprocess_patches,
    read_image,
)
from tests.tiny import to_numpy
from tests.weights.peer_process import MARKS, arrays_in, build, is_close, work
from tests.weights.test_peers_huggingface import CASES, request_of

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning"),
]
TIMM = (
    "naflexvit_base_patch16_gap",
    "naflexvit_base_patch16_map",
    "naflexvit_base_patch16_par_gap",
    "naflexvit_base_patch16_siglip",
)
SIGLIP = ("Siglip2VisionModel", "Siglip2ForImageClassification")
# Rows and columns of the images in a batch; the longest has all its patches.
GRIDS = ((3, 5), (1, 4), (4, 4), (2, 8))


def draw_sequences(length, seed):
    """Return a batch of patches in the grids of GRIDS."""
    random = np.random.default_rng(seed)
    count = max(h * w for h, w in GRIDS)
    batch = {
        "patches": random.standard_normal((len(GRIDS), count, length)),
        "coordinates": np.zeros((len(GRIDS), count, 2), "int64"),
        "mask": np.zeros((len(GRIDS), count), bool),
    }
    batch["patches"] = batch["patches"].astype("float32")
    for index, (h, w) in enumerate(GRIDS):
        cells = np.stack(np.divmod(np.arange(h * w), w), axis=-1)
        batch["coordinates"][index, : h * w] = cells
        batch["mask"][index, : h * w] = True
    return batch


@pytest.fixture(scope="module")
def answered(peers_folder):
    """Return a function from a name to a model, its patches and answers."""
    requests = {name: {"name": name} for name in TIMM}
    build("build_architecture", requests, peers_folder)
    requests = {kind: request_of(kind, CASES[kind]) for kind in SIGLIP}
    build("build_huggingface_class", requests, peers_folder)
    models, requests = {}, []
    for name in (*TIMM, *SIGLIP):
        path = peers_folder / name
        models[name] = from_checkpoint(path)
        length = models[name].config.patch_size ** 2 * 3
        np.savez(path / "inputs.npz", **draw_sequences(length, 1))
        files = {
            "path": str(path),
            "inputs": str(path / "inputs.npz"),
            "output": str(path / "answers.npz"),
        }
        if name in SIGLIP:
            task = {"task": "answer_huggingface_patches", "kind": name}
        else:
            task = {"task": "answer_timm_patches"}
        requests.append({**task, **files})
    errors = work(requests, peers_folder, "answered")
    assert not any(errors), errors

    def find(name):
        path = peers_folder / name
        answers = arrays_in(path / "answers.npz")
        return models[name], arrays_in(path / "inputs.npz"), answers["logits"]

    return find


@pytest.mark.parametrize("name", [*TIMM, *SIGLIP])
def test_images_of_different_grids_in_one_batch(name, answered):
    model, inputs, expected = answered(name)
    answer = to_numpy(FlexibleVisionTransformer(model)(inputs))
    is_close(answer, expected)


def test_patches_of_another_size(answered, peers_folder):
    name = "naflexvit_base_patch16_gap"
    model, _, _ = answered(name)
    size = model.config.patch_size + 3
    random = np.random.default_rng(2)
    images = random.standard_normal((2, 5 * size, 3 * size, 3), "float32")
    patches = images.reshape(2, 5, size, 3, size, 3).transpose(0, 1, 3, 2, 4, 5)
    cells = np.stack(np.divmod(np.arange(15), 3), axis=-1)
    inputs, output = peers_folder / "flexi.npz", peers_folder / "answers.npz"
    np.savez(
        inputs,
        patches=patches.reshape(2, 15, -1),
        coordinates=np.stack([cells] * 2),
        mask=np.ones((2, 15), bool),
    )
    task = {
        "task": "answer_timm_patches",
        "path": str(peers_folder / name),
        "inputs": str(inputs),
        "output": str(output),
        "patch_size": size,
    }
    assert work([task], peers_folder, "flexi") == [None]
    # timm resizes patches bicubically, with antialiasing.
    flexible = FlexibleVisionTransformer(model, "bicubic_antialias")
    answer = to_numpy(flexible(images, patch_size=size))
    is_close(answer, arrays_in(output)["logits"])


def test_photos_become_the_patches_of_siglip_2(answered, peers_folder):
    random = np.random.default_rng(3)
    photos = []
    for size in ((50, 90), (33, 32), (200, 40)):
        pixels = random.integers(0, 256, (9, 7, 3), "uint8")
        photos.append(str(peers_folder / "{}x{}.png".format(*size)))
        Image.fromarray(pixels).resize(size).save(photos[-1])
    output = peers_folder / "pixels.npz"
    model, _, _ = answered("Siglip2VisionModel")
    request = {
        "task": "process_patches",
        "photos": photos,
        "output": str(output),
        "patch_size": model.config.patch_size,
        "max_patches": 20,
    }
    assert work([request], peers_folder, "photos") == [None]
    actual = preprocess_patches(
        [read_image(path) for path in photos], model, 20
    )
    with np.load(output) as expected:
        np.testing.assert_array_equal(actual["mask"], expected["mask"] == 1)
        np.testing.assert_array_equal(
            actual["coordinates"].max(axis=1) + 1, expected["grids"]
        )
        np.testing.assert_allclose(
            actual["patches"], expected["patches"], atol=2e-6
        )
