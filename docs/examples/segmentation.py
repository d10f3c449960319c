"""Find the pixels of digits in photographs: a ViT with one convolution.

    python docs/examples/segmentation.py --picture=segmentation.png

The head is one convolution, which reads the features of several blocks and
returns the pixels of each patch. `--model` takes a trained model, such as
the model.keras of a run or a checkpoint for images of 32x32 pixels; it is then
frozen, and only the head is trained. Test images have other digits, and other
parts of the photographs, than those of the training.
"""

import argparse

import keras
import numpy as np
from digits_in_photos import BORDER, SIDE, paint
from sklearn.datasets import load_digits, load_sample_images

import keras_vit

CONFIG = keras_vit.ViTConfig(
    width=64,
    depth=6,
    mlp_dim=256,
    num_heads=4,
    patch_size=4,
    image_size=SIDE,
    num_classes=0,
    pooling="avg",
    use_class_token=False,
)


def make_images(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return photographs with digits, and where the digits are.

    Shapes: returns: (count, 32, 32, 3), uint8, and (count, 32, 32, 1), bool.

    Args:
        split: "train" or "test".
        count: Number of images.
    """
    digits, photos = load_digits().images / 16, load_sample_images().images
    first_test = int(BORDER * len(digits))
    columns = [int(BORDER * photo.shape[1]) for photo in photos]
    if split == "train":
        digits = digits[:first_test]
        photos = [photo[:, :c] for photo, c in zip(photos, columns)]
    else:
        digits = digits[first_test:]
        photos = [photo[:, c:] for photo, c in zip(photos, columns)]
    rng = np.random.default_rng(["train", "test"].index(split))
    pairs = [
        paint(photos[rng.integers(2)], digits[rng.integers(len(digits))], rng)
        for _ in range(count)
    ]
    images, opacities = map(np.stack, zip(*pairs))
    return images, opacities[..., None] > 0.5


def make_segmenter(backbone: keras_vit.VisionTransformer) -> keras.Model:
    """Return a model from images to a logit for each pixel.

    Shapes: images (B, 32, 32, 3) to logits (B, 32, 32, 1).

    Args:
        backbone: The model whose features the head reads.
    """
    images = keras.Input((SIDE, SIDE, 3))
    depth, side = backbone.config.depth, backbone.config.patch_size
    blocks = (depth // 3 - 1, 2 * depth // 3 - 1, depth - 1)
    maps = backbone.features(images, blocks=blocks)
    x = keras.layers.Concatenate()(maps)  # (B, h, w, 3 D)
    x = keras.layers.Conv2D(side * side, 1)(x)  # (B, h, w, P * P)
    h, w = backbone.config.grid_size
    x = keras.layers.Reshape((h, w, side, side))(x)
    x = keras.layers.Permute((1, 3, 2, 4))(x)  # (B, h, P, w, P)
    return keras.Model(images, keras.layers.Reshape((SIDE, SIDE, 1))(x))


def intersection_over_union(logits, truths) -> float:
    """Return the pixels that are found and right, of those that are either."""
    found = logits > 0
    return (found & truths).sum() / (found | truths).sum()


def draw(images, truths, logits, path: str):
    """Draw images, where the digits are, and where they were found."""
    rows = [
        np.concatenate(list(row), axis=1)
        for row in (
            images,
            np.repeat(255 * truths.astype("uint8"), 3, axis=-1),
            np.repeat(255 * (logits > 0).astype("uint8"), 3, axis=-1),
        )
    ]
    pixels = np.concatenate(rows).repeat(4, axis=0).repeat(4, axis=1)
    keras.utils.save_img(path, pixels, scale=False)


def main():
    """Train a segmenter, print how well it does, and draw some images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a .keras file or a checkpoint")
    parser.add_argument("--num_images", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--picture", help="file to draw test images to")
    arguments = parser.parse_args()

    keras.utils.set_random_seed(0)
    name = arguments.model
    if name is None:
        backbone = keras_vit.VisionTransformer(CONFIG)
    elif name.endswith(".keras"):
        backbone = keras.saving.load_model(name)
    else:
        backbone = keras_vit.from_checkpoint(name, image_size=SIDE)
    backbone.trainable = name is None
    segmenter = make_segmenter(backbone)
    segmenter.compile(
        keras.optimizers.AdamW(1e-3, weight_decay=0.01),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    images, truths = make_images("train", arguments.num_images)
    x = keras_vit.preprocess_input(images, model=backbone)
    segmenter.fit(
        x,
        truths.astype("float32"),
        batch_size=32,
        epochs=arguments.epochs,
        verbose=2,
    )
    images, truths = make_images("test", 512)
    x = keras_vit.preprocess_input(images, model=backbone)
    logits = segmenter.predict(x, verbose=0)
    score = intersection_over_union(logits, truths)
    print(f"intersection over union on 512 test images: {score:.3f}")
    if arguments.picture:
        draw(images[:12], truths[:12], logits[:12], arguments.picture)


if __name__ == "__main__":
    main()
