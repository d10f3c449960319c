"""BiT ResNets judged by timm, which reads the same published file.

Its reader and ours are two readers of one format, see bit_arrays.py.
"""

import numpy as np
import pytest

from tests.tiny import to_numpy
from tests.weights.bit_arrays import draw_bit_arrays
from tests.weights.peer_process import MARKS, work
from trainers.models.resnets import find_bit, load_bit_checkpoint

pytestmark = MARKS

NUM_CLASSES = 7
# Sizes of images, even and odd.
SIZES = [(64, 64), (33, 33), (45, 50)]
CASES = {
    "R50x1": ((3, 4, 6, 3), 1, 3),
    "x2": ((1, 2, 1), 2, 3),
    "1_channel": ((1, 2), 1, 1),
}
# Relative to the largest logit.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return the folder of the files, with timm's logits beside them."""
    folder = tmp_path_factory.mktemp("bit")
    requests = []
    for name, (units, factor, channels) in CASES.items():
        np.savez(
            folder / name,
            **draw_bit_arrays(units, factor, channels, NUM_CLASSES),
        )
        arguments = {"layers": units, "width_factor": factor}
        arguments |= {"in_chans": channels, "num_classes": NUM_CLASSES}
        requests.append(
            {
                "task": "answer_bit",
                "path": folder / f"{name}.npz",
                "arguments": arguments,
                "shapes": [(2, *size, channels) for size in SIZES],
            }
        )
    assert work(requests, folder, "requests") == [None] * len(CASES)
    return folder


def load(path, channels, image_size=None):
    return load_bit_checkpoint(
        find_bit(str(path)),
        image_size=image_size,
        channels=channels,
        num_classes=NUM_CLASSES,
    )


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_timm(answers, name):
    model = load(answers / f"{name}.npz", CASES[name][2])
    with np.load(answers / f"{name}.answers.npz") as theirs:
        for index in range(len(SIZES)):
            expected = theirs[f"logits/{index}"]
            logits = to_numpy(model(theirs[f"x/{index}"]))
            scale = np.abs(expected).max()
            assert scale > 0.5
            np.testing.assert_allclose(
                logits, expected, rtol=0, atol=TOLERANCE * scale
            )


def test_the_comparison_sees_another_padding(answers):
    """With SAME padding, the logits would be others by far."""
    model = load(answers / "x2.npz", 3)
    for layer in model.layers[1:]:
        if layer.name == "root_conv":
            layer.use_symmetric_padding = False
    with np.load(answers / "x2.answers.npz") as theirs:
        expected = theirs["logits/0"]
        difference = np.abs(to_numpy(model(theirs["x/0"])) - expected).max()
    assert difference > 100 * TOLERANCE * np.abs(expected).max()
