"""The preprocessing of photos, compared with timm and transformers."""

import pathlib
import shutil

import numpy as np
import pytest
from PIL import Image

from keras_vit import (
    Preprocessing,
    VisionTransformer,
    from_checkpoint,
    preprocess_input,
    read_image,
    save_checkpoint,
)
from tests.tiny import randomize, tiny_config
from tests.weights.peer_process import MARKS, work

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning"),
]
GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
CLIP = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
SETTINGS = {
    "vit": Preprocessing(),
    "imagenet": Preprocessing("imagenet", "shortest", "bicubic", 0.8),
    "clip": Preprocessing(CLIP, "shortest", "bicubic"),
    "zero_one": Preprocessing("zero_one", "squash", "bicubic"),
    "satellite": Preprocessing("satellite", "squash", "bilinear", 0.8),
    "another": Preprocessing(((0.1, 0.2, 0.3), (0.3, 0.2, 0.1)), "shortest"),
    "areas": Preprocessing("vit", "shortest_rounded", "area", 0.8),
}
SQUARE = {"height": 32, "width": 32}
# Processors of Hugging Face with their own defaults, at a smaller size.
PROCESSORS = {
    "ViTImageProcessor": {"size": SQUARE},
    "DeiTImageProcessor": {
        "size": {"height": 40, "width": 40},
        "crop_size": SQUARE,
    },
    "CLIPImageProcessor": {"size": {"shortest_edge": 32}, "crop_size": SQUARE},
    "BitImageProcessor": {"size": {"shortest_edge": 40}, "crop_size": SQUARE},
    "SiglipImageProcessor": {"size": SQUARE},
    "BeitImageProcessor": {"size": SQUARE, "crop_size": SQUARE},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return photos whose crops begin at the same pixel in all libraries."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    paths = []
    for size in ((80, 60), (45, 90), (32, 32), (20, 30)):
        pixels = random.integers(0, 256, (9, 7, 3), "uint8")
        paths.append(folder / "{}x{}.png".format(*size))
        Image.fromarray(pixels).resize(size).save(paths[-1])
    return paths


def read_all(photos, model):
    pixels = np.stack([read_image(photo, model=model) for photo in photos])
    return preprocess_input(pixels, "channels_last", model=model)


@pytest.fixture(scope="module")
def written(photos, tmp_path_factory):
    """Return the folder of the images of both libraries, and the models."""
    folder = tmp_path_factory.mktemp("written")
    models, requests = {}, []
    for name, settings in SETTINGS.items():
        config = tiny_config(preprocessing=settings)
        models[name] = randomize(VisionTransformer(config), 1)
        for layout, task in (
            ("timm", "transform_timm"),
            ("huggingface", "process_huggingface"),
        ):
            path = folder / f"{name}_{layout}"
            save_checkpoint(models[name], path, layout=layout)
            requests.append(
                {
                    "task": task,
                    "path": path,
                    "photos": photos,
                    "output": folder / f"{name}_{layout}.npz",
                }
            )
    errors = work(requests, folder, "written")
    assert not any(errors), errors
    return folder, models


@pytest.mark.parametrize("layout", ["timm", "huggingface"])
@pytest.mark.parametrize("name", SETTINGS)
def test_others_read_photos_as_the_model_they_were_given(
    written, photos, name, layout
):
    folder, models = written
    expected = np.load(folder / f"{name}_{layout}.npz")["pixels"]
    if name == "areas":  # They have the box of Pillow, which is not the same.
        found = preprocess_input(
            np.stack([read_by_box(photo) for photo in photos]), "channels_last"
        )
    else:
        found = read_all(photos, models[name])
    np.testing.assert_allclose(found, expected, atol=2e-6)


def read_by_box(photo):
    """Return the middle 32 x 32 of 40 pixels on the short side."""
    image = Image.open(photo)
    size = [side * 40 // min(image.size) for side in image.size]
    image = image.resize(size, Image.Resampling.BOX)
    left, top = [(side - 32) // 2 for side in size]
    return np.asarray(image.crop((left, top, left + 32, top + 32)))


@pytest.fixture(scope="module")
def processed(photos, tmp_path_factory):
    """Return photos preprocessed by processors of Hugging Face."""
    folder = tmp_path_factory.mktemp("processed")
    requests = []
    for kind, arguments in PROCESSORS.items():
        path = folder / kind
        shutil.copytree(GOLDEN / "hf_vit", path)
        requests.append(
            {
                "task": "process_huggingface",
                "path": path,
                "photos": photos,
                "output": folder / f"{kind}.npz",
                "kind": kind,
                "arguments": arguments,
            }
        )
    errors = work(requests, folder, "processed")
    assert not any(errors), errors
    return folder


@pytest.mark.parametrize("kind", PROCESSORS)
def test_a_model_reads_photos_as_its_processor_does(processed, photos, kind):
    model = from_checkpoint(processed / kind)
    expected = np.load(processed / f"{kind}.npz")["pixels"]
    found = read_all(photos, model)
    np.testing.assert_allclose(found, expected, atol=2e-6)
