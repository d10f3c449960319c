import numpy as np
import pytest
from keras import ops

from keras_vit import decode_predictions
from keras_vit.preprocessing import imagenet_classes


def test_imagenet_has_its_1000_classes_in_the_order_of_wordnet():
    identifiers = [identifier for identifier, _ in imagenet_classes()]
    assert len(identifiers) == 1000
    assert identifiers == sorted(set(identifiers))
    assert all(i[0] == "n" and len(i) == 9 for i in identifiers)
    # Lists that hold a name once are known to have 998 classes.
    names = [name.split(",")[0] for _, name in imagenet_classes()]
    assert all(names) and names.count("crane") == 2


# Indices that any list of the ILSVRC 2012 classes agrees on.
@pytest.mark.parametrize(
    ("index", "identifier", "name"),
    [
        (0, "n01440764", "tench"),
        (207, "n02099601", "golden retriever"),
        (817, "n04285008", "sports car"),
        (999, "n15075141", "toilet tissue"),
    ],
)
def test_known_classes_of_imagenet(index, identifier, name):
    scores = np.zeros((1, 1000), "float32")
    scores[0, index] = 0.9
    [row] = decode_predictions(scores)
    assert len(row) == 5
    assert row[0][0] == identifier and row[0][1].startswith(name)
    assert row[0][2] == pytest.approx(0.9)


def test_highest_first_for_each_image():
    scores = np.array([[0.1, 0.7, 0.2], [5.0, -1.0, 6.0], [0.0, 0.0, 0.0]])
    found = decode_predictions(scores, 2, class_names=["a", "b", "c"])
    assert found == [
        [("1", "b", 0.7), ("2", "c", 0.2)],
        [("2", "c", 6.0), ("0", "a", 5.0)],
        # Equal scores are in the order of their classes.
        [("0", "a", 0.0), ("1", "b", 0.0)],
    ]
    [row] = decode_predictions(scores[:1], top=9, class_names="abc")
    assert len(row) == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tensors_are_decoded(dtype):
    scores = ops.cast(np.array([[0.25, 0.5]]), dtype)
    (row,) = decode_predictions(scores, class_names=["a", "b"])
    assert row == [("1", "b", 0.5), ("0", "a", 0.25)]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_integer_scores_of_a_quantized_model_are_ordered(dtype):
    # Minus zero is zero and minus -128 is -128: the order of the negative
    # is not the reverse one.
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    scores = np.array([[low, high, low + 1]], dtype)
    (row,) = decode_predictions(scores, class_names=["low", "high", "next"])
    assert [name for _, name, _ in row] == ["high", "next", "low"]


@pytest.mark.parametrize(
    "shape, choices, words",
    [
        ((1, 2), {"top": 0, "class_names": "ab"}, "`top`"),
        ((1, 2), {"top": "5", "class_names": "ab"}, "`top`"),
        ((1000,), {}, r"`predictions` must have the shape \(B, C\)"),
        ((2, 7), {}, r"`predictions` .* 1000 classes; pass `class_names`"),
        ((2, 7), {"class_names": "ab"}, "`predictions` .* 2 classes"),
    ],
)
def test_what_does_not_fit_is_an_error(shape, choices, words):
    with pytest.raises(ValueError, match=words):
        decode_predictions(np.zeros(shape), **choices)
