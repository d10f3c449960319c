"""How a line of operations is read."""

import inspect

import numpy as np
import pytest

from tests.trainers.augment.seeds import SIZE
from trainers.augment.augmentation import parse_augmentation
from trainers.augment.operations import BATCH_OPS, OPS


def test_arguments_by_place_by_name_and_left_out(image):
    texts = [
        "inception_crop(8, 0.4)",
        " inception_crop ( 8 , smallest = .4 ) ",
        "inception_crop(smallest=4e-1, size=+8)",
        "inception_crop(smallest=0.4,)",
        "inception_crop(None, 0.4)",
    ]
    results = [
        parse_augmentation(text, (8, 8)).image(image, (0, 1)) for text in texts
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize(
    "text, fault, message",
    [
        ("flip", "flip", "must be one of 'affine', .*'mixup'.*='flip'"),
        ("flip_lr|flop(2)", "flop", "must be one of"),
        ("__import__('os')", "__import__", "must be one of"),
        ("é", "é", "must be one of"),
        ("flip_lr|2", "2", "must be operations separated by.*Received: 2"),
        ("flip_lr|a.b(2)", "a.b", "must be operations .*Received: a.b"),
        ("flip_lr|resize(2)+3", "resize", "must be operations"),
        ("flip_lr # |mixup", "#", "must be operations .*Received: '#'"),
        ("pad_crop(x)", "x", "must be numbers or None. Received: x"),
        ("pad_crop('a')", "'a'", "must be numbers or None. Received: 'a'"),
        ("pad_crop(True)", "True", "must be numbers or None. Received: True"),
        ("pad_crop(pixels=[1])", "pixels", "must be numbers.*Received: .1"),
        ("pad_crop(*x)", "*x", "must be numbers or None"),
        ("flip_lr(**x)", "flip_lr", "unexpected keyword argument"),
        (
            "flip_lr|pad_crop",
            "pad_crop",
            r"pad_crop\(pixels: int\): missing .*'pixels'. Received: pad_crop",
        ),
        ("affine(1, scale=0)", "affine", "missing .*'shift'"),
        ("pad_crop(4, 5)", "pad", r"too many .*Received: pad_crop\(4, 5\)"),
        ("flip_lr(1)", "flip_lr", r"flip_lr\(\): too many"),
        ("flip_lr | pad_crop( x = 3)", "pad", r"missing .*pad_crop\(x=3\)"),
        ("pad_crop(1, pixels=3)", "pad", "multiple values .*'pixels'"),
        ("pad_crop(pixels=1, pixels=3)", "pad", "given twice"),
        ("inception_crop(image_size=3)", "inc", "unexpected.*'image_size'"),
        (
            "inception_crop(0.3)",
            "0.3",
            r"= None, .* = 0.05\): .*whole",
        ),
        ("inception_crop(size=0)", "size", "`size` must be positive"),
        ("inception_crop(8, smallest=2)", "smallest", r"\(0, 1\]"),
        ("inception_crop(8, 0)", "0)", r"\(0, 1\].*smallest=0"),
        ("pad_crop(-1)", "-1", "0 or more. Received: pixels=-1"),
        ("pad_crop(None)", "None", "must be a number"),
        ("affine(1e999, 0, 0)", "1e999", "must be finite"),
        ("resize(2147483648)", "2147483648", "less than 32 bits.*=2147483648"),
        ("affine(-1e10, 0, 0)", "-1e10", "less than 32 bits"),
        ("affine(-1, 0, 0)", "-1", "`degrees` must be 0 or more"),
        ("affine(0, -1, 0)", "-1", "`shift` must be 0 or more"),
        ("affine(0, 0, 1)", "1", r"`scale` must be in \[0, 1\)"),
        ("random_crop(0)", "0", "positive"),
        ("central_crop(-2)", "-2", "positive"),
        ("resize(0)", "0", "positive"),
        ("resize_small(0)", "0", "positive"),
        ("resize_small", "resize_small", "missing .*'size'"),
        ("randaugment(0, 1)", "0", "`num_ops` must be positive"),
        ("randaugment(2, -1)", "-1", "`magnitude` must be 0 or more"),
        ("random_erasing(1.5)", "1.5", "`probability` must be in"),
        ("random_erasing(1, 0)", "0)", "`smallest` must be in"),
        ("random_erasing(1, 0.1, 0.05)", "0.05", "`largest` must be in"),
        ("random_erasing(1, 0.5)", "random", "`largest` must be in"),
        ("random_erasing(aspect=0)", "aspect", "`aspect` must be in"),
        ("random_erasing(fill=256)", "fill", "`fill` must be in"),
        ("value_range(1, 1)", "1)", "`high` must be more than `low`"),
        ("normalize(caffe)", "caffe", "`mean` must be one of vit, imagenet"),
        ("normalize((1, 2))", "normalize", "`deviation` must be given with"),
        ("normalize((1,), (0,))", "(0,", "greater than 0"),
        ("normalize((1, 2), (1,))", "(1,)", "as there are means"),
        ("normalize((1, 2), (1, None))", "(1, N", "as there are means"),
        ("normalize((None,), (1,))", "(N", "`mean` must be numbers"),
        ("normalize((), ())", "(), ()", "`mean` must be numbers"),
        ("normalize((1, x), (1,))", "(1, x", "must be numbers or None"),
        ("resize(7, sharp)", "sharp", "`method` must be one of antialias"),
        ("resize(bilinear)", "bilinear", "must be numbers or None"),
        ("normalize(clip)|resize", "resize", "last operation on images"),
        ("mixup(0)", "0", "`alpha` must be positive"),
        ("cutmix(alpha=-1)", "alpha", "`alpha` must be positive"),
        ("mixup(0.2)|flip_lr", "flip_lr", "before those on batches.*flip_lr"),
        ("mixup(0.2)|value_range(0, 1)", "value_range", "before those on"),
        ("value_range(0, 1)|resize(3)", "resize", "last operation on images"),
    ],
)
def test_errors_point_at_the_fault(text, fault, message):
    with pytest.raises(ValueError, match=f"^`augment`: .*{message}") as error:
        parse_augmentation(text, SIZE)
    rule, line, caret = str(error.value).split("\n")
    assert "Received: " in rule
    assert line.strip() == text.strip()
    assert caret.endswith(" ^") and not caret[:-1].strip()
    place = len(caret) - 1
    # `fault` starts there, and where there are several, at the last.
    assert place == (line.rindex(fault) if fault else len(line))


@pytest.mark.parametrize(
    "text",
    [
        "|flip_lr",
        "flip_lr|",
        "flip_lr||pad_crop(2)",
        "flip_lr pad_crop(2)",
        "flip_lr|pad_crop(",
        "pad_crop(2",
        "pad_crop(2))",
        "pad_crop(4x)",
        "pad_crop(pixels=)",
        "flip_lr;mixup",
        "flip_lr\0",
    ],
)
def test_text_that_is_not_a_line_of_operations(text):
    """Python's parser names the error and its position."""
    with pytest.raises(
        ValueError, match="must be operations .* Received: ."
    ) as error:
        parse_augmentation(text, SIZE)
    _, line, caret = str(error.value).split("\n")
    assert line == f"  {text}" and caret.endswith(" ^")
    assert len(caret) <= len(line) + 1


def test_errors_show_a_text_of_many_lines_as_one():
    with pytest.raises(ValueError) as error:
        parse_augmentation("flip_lr|\n\tpad_crop(x)", SIZE)
    _, line, caret = str(error.value).split("\n")
    assert line == "  flip_lr|  pad_crop(x)"
    assert len(caret) - 1 == line.index("x)")


def test_errors_blame_the_argument_of_the_caller():
    with pytest.raises(ValueError, match="^`eval_augment`: "):
        parse_augmentation("flip", SIZE, argument="eval_augment")


def test_all_arguments_have_a_type_that_is_checked():
    for factory in (OPS | BATCH_OPS).values():
        for parameter in inspect.signature(factory).parameters.values():
            if parameter.kind is not parameter.KEYWORD_ONLY:
                assert parameter.annotation in (
                    int,
                    float,
                    int | None,
                    float | None,
                    str,
                    str | tuple,
                    tuple | None,
                )
