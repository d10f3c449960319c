"""Properties of all operations on images."""

import numpy as np
import pytest
import tensorflow as tf

from tests.trainers.augment.seeds import SIZE, image_operation, over_seeds
from trainers.augment.augmentation import parse_augmentation
from trainers.augment.operations import OPS

EXAMPLES = {
    "affine": "affine(20, 0.2, 0.2)",
    "flip_lr": "flip_lr",
    "inception_crop": "inception_crop(7, 0.3)",
    "pad_crop": "pad_crop(2)",
    "randaugment": "randaugment(2, 1)",
    "random_crop": "random_crop(5)",
    "random_erasing": "random_erasing(0.5)",
}


WITHOUT_DRAWS = {
    "central_crop": "central_crop",
    "normalize": "normalize(clip)",
    "resize": "resize(7)",
    "resize_small": "resize_small(5)",
    "resize_to_cover": "resize_to_cover(7, bicubic)",
    "value_range": "value_range(0, 1)",
}


def test_every_operation_has_an_example():
    assert set(EXAMPLES | WITHOUT_DRAWS) == set(OPS)


@pytest.mark.parametrize("text", EXAMPLES.values())
def test_same_seed_same_image_and_other_seeds_others(text, image):
    augment = image_operation(text)
    results = over_seeds(lambda seed: augment(image, seed), 20)
    again = over_seeds(lambda seed: augment(image, seed), 20)
    for one, other in zip(results, again):
        np.testing.assert_array_equal(one, other)
    assert any(
        r.shape != results[3].shape or np.any(r != results[3]) for r in results
    )


@pytest.mark.parametrize("text", (EXAMPLES | WITHOUT_DRAWS).values())
def test_any_number_of_channels(text):
    for channels in (1,) if "randaugment" in text else (1, 5):
        image = tf.ones((9, 9, channels))
        assert image_operation(text)(image, (0, 0)).shape[-1] == channels


@pytest.mark.parametrize("text", (EXAMPLES | WITHOUT_DRAWS).values())
def test_images_of_unknown_size_in_a_pipeline(text, image):
    augment = image_operation(text)
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([image, image[:9]]),
        output_signature=tf.TensorSpec((None, None, 3)),
    ).map(lambda x: augment(x, (0, 0)))
    for one, source in zip(dataset, (image, image[:9])):
        expected = augment(source, (0, 0))
        assert expected.dtype == tf.float32
        np.testing.assert_allclose(one, expected, atol=1e-3)


def test_empty_text_changes_nothing(image):
    for text in ("", "  "):
        augmentation = parse_augmentation(text, SIZE)
        np.testing.assert_array_equal(augmentation.image(image, (0, 0)), image)
        images, labels = augmentation.batch(
            image[None], tf.eye(1), tf.ones(1), (0, 0)
        )
        np.testing.assert_array_equal(images, image[None])
        assert augmentation.normalization == ((0.5,), (0.5,))
    augmentation = parse_augmentation("flip_lr|value_range(0, 1)|mixup", SIZE)
    assert augmentation.normalization == ((0,), (1,))


def test_equal_operations_draw_apart(image):
    """Two flips by one draw would cancel out."""
    twice = image_operation("flip_lr|flip_lr")
    results = over_seeds(lambda seed: twice(image, seed), 20)
    assert any(np.array_equal(r, image[:, ::-1]) for r in results)


def test_draws_depend_on_the_place_alone(image):
    """Later operations do not change the draws of an operation."""
    alone = image_operation("pad_crop(3)")
    first = image_operation("pad_crop(3)|flip_lr|affine(0, 0, 0)")
    for seed in range(10):
        expected = alone(image, (0, seed)).numpy()
        result = np.round(first(image, (0, seed)), 2)
        assert any(
            np.allclose(result, e, atol=0.02)
            for e in (expected, expected[:, ::-1])
        )


def test_randaugment_is_applied(image):
    augment = image_operation("randaugment(2, 10)")
    results = over_seeds(lambda seed: augment(image, seed), 30)
    assert sum(np.abs(r - image).max() > 1 for r in results) > 25
    for result in results:
        np.testing.assert_array_equal(result, np.round(result))
        assert 0 <= result.min() and result.max() <= 255
