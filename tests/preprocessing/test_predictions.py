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
    assert all(name for _, name in imagenet_classes())


# Indices that any list of the ILSVRC 2012 classes agrees on.
@pytest.mark.parametrize(
    ("index", "identifier", "name"),
    [
        (0, "n01440764", "tench"),
        (1, "n01443537", "goldfish"),
        (207, "n02099601", "golden retriever"),
        (281, "n02123045", "tabby"),
        (388, "n02510455", "giant panda"),
        (468, "n02930766", "cab"),
        (817, "n04285008", "sports car"),
        (999, "n15075141", "toilet tissue"),
    ],
)
def test_known_classes_of_imagenet(index, identifier, name):
    scores = np.zeros((1, 1000), "float32")
    scores[0, index] = 0.9
    (((actual_identifier, actual_name, score),),) = decode_predictions(
        scores, top=1
    )
    assert actual_identifier == identifier
    assert actual_name.startswith(name)
    assert score == pytest.approx(0.9)


def test_both_cranes_and_maillots_are_classes_of_their_own():
    # Lists that hold a name once are known to have 998 classes.
    by_name = {}
    for identifier, name in imagenet_classes():
        by_name.setdefault(name.split(",")[0], []).append(identifier)
    assert len(by_name["crane"]) == 2


def test_highest_first_for_each_image():
    scores = np.array([[0.1, 0.7, 0.2], [5.0, -1.0, 6.0]])
    assert decode_predictions(scores, 2, class_names=["a", "b", "c"]) == [
        [("1", "b", 0.7), ("2", "c", 0.2)],
        [("2", "c", 6.0), ("0", "a", 5.0)],
    ]


def test_equal_scores_come_in_the_order_of_their_classes():
    (row,) = decode_predictions(np.zeros((1, 3)), class_names=["a", "b", "c"])
    assert [name for _, name, _ in row] == ["a", "b", "c"]


def test_top_is_at_most_the_number_of_classes():
    (row,) = decode_predictions(np.zeros((1, 2)), top=9, class_names="ab")
    assert len(row) == 2


def test_five_by_default():
    (row,) = decode_predictions(np.zeros((1, 1000)))
    assert len(row) == 5


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


@pytest.mark.parametrize("top", [0, -1, "5", None])
def test_a_top_that_is_no_positive_whole_number_is_an_error(top):
    with pytest.raises(ValueError, match=f"`top` must be.*top={top!r}"):
        decode_predictions(np.zeros((1, 2)), top=top, class_names="ab")


@pytest.mark.parametrize("shape", [(1000,), (1, 1, 1000), ()])
def test_other_shapes_than_a_batch_of_scores_are_an_error(shape):
    with pytest.raises(
        ValueError, match=r"`predictions` must have the shape \(B, C\)"
    ):
        decode_predictions(np.zeros(shape))


def test_another_number_of_classes_is_an_error():
    with pytest.raises(
        ValueError,
        match=r"one column for each of 1000 classes; pass `class_names`.*"
        r"Received: shape=\(2, 7\)",
    ):
        decode_predictions(np.zeros((2, 7)))
    with pytest.raises(ValueError, match="one column for each of 2 classes"):
        decode_predictions(np.zeros((2, 7)), class_names=["a", "b"])
