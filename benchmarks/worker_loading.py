"""The worker that reads and augments JPEG files, and trains, by one package.

The packages are given the same files, in random order, and return the same:
batches (B, 224, 224, 3) of normalised float32 numbers, or channels first, and
their labels. Each does it as its own documentation says. All threads and
processes of a worker share the processors that the case names. If the case
names a model, every batch is followed by an update with AdamW.
"""

import importlib.metadata
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator

from benchmarks.pipe import answer_requests

SIDE = 224
# What is done to the images -> the operations of ours.
AUGMENTATIONS = {
    "crop": "inception_crop(smallest=0.08)|flip_lr",
    "randaugment": "inception_crop(smallest=0.08)|flip_lr|randaugment(2, 10)",
    "augreg": "inception_crop(smallest=0.08)|flip_lr|randaugment(2, 10)"
    "|mixup(0.2)",
}
SCALE = (0.08, 1.0)  # Shares of the area that a crop keeps.


def make_functions(case: dict) -> tuple[dict[str, Callable], dict]:
    """Return the function that takes batches, and versions of packages."""
    # Before a library counts the processors.
    os.sched_setaffinity(0, case["processors"])
    versions = {}
    count = case["images"] // case["batch_size"]
    if case.get("model"):
        train = TRAININGS[case["package"]](case, versions)
        return {"step": lambda: train(count)}, versions
    batches = PACKAGES[case["package"]](case, versions)

    def take():
        for _ in itertools.islice(batches, count):
            pass

    return {"step": take}, versions


def ours(case: dict, versions: dict) -> Iterator:
    """Return the training batches of `trainers`."""
    import tensorflow as tf

    from trainers.data.batches import train_batches
    from trainers.data.datasets import open_dataset

    versions["tensorflow"] = tf.__version__
    dataset = open_dataset(f"folder:{case['folder']}")
    batches = train_batches(
        dataset,
        image_size=(SIDE, SIDE),
        batch_size=case["batch_size"],
        augment=AUGMENTATIONS[case["augment"]],
    )
    return iter(batches)


def keras_layers(case: dict, versions: dict) -> Iterator:
    """Return the batches of `image_dataset_from_directory` and Keras' layers.

    Keras has no crop of random size: the images are read at 256 x 256 pixels,
    and parts of 224 x 224 are cut out.
    """
    import keras
    import tensorflow as tf

    versions["keras"] = keras.__version__
    layers = [
        keras.layers.RandomCrop(SIDE, SIDE),
        keras.layers.RandomFlip("horizontal"),
    ]
    if case["augment"] != "crop":
        layers.append(keras.layers.RandAugment((0, 255), 2, 10 / 30))
    layers.append(keras.layers.Rescaling(1 / 127.5, -1))
    dataset = keras.utils.image_dataset_from_directory(
        case["folder"],
        label_mode="categorical",
        image_size=(256, 256),
        batch_size=case["batch_size"],
        shuffle=True,
        verbose=False,
    )

    mixup = keras.layers.MixUp(0.2)

    def augment(images, labels):
        for layer in layers:
            images = layer(images, training=True)
        if case["augment"] != "augreg":
            return images, labels
        mixed = mixup({"images": images, "labels": labels}, training=True)
        return mixed["images"], mixed["labels"]

    return iter(
        dataset.repeat()
        .map(augment, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


def _loader_of_torch(case: dict, dataset, collate=None) -> Iterator:
    """Return endless batches of a process for each processor."""
    import torch

    loader = torch.utils.data.DataLoader(
        dataset,
        case["batch_size"],
        shuffle=True,
        num_workers=len(case["processors"]),
        collate_fn=collate,
        drop_last=True,
        persistent_workers=True,
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def timm(case: dict, versions: dict) -> Iterator:
    """Return the batches of timm's loader, without its GPU prefetcher."""
    from benchmarks.worker_torch import import_timm

    package = import_timm()
    import timm.data
    import torch

    torch.set_num_threads(1)
    versions["timm"] = package.__version__
    has_ops = case["augment"] != "crop"
    transform = timm.data.create_transform(
        SIDE,
        is_training=True,
        color_jitter=None,
        auto_augment="rand-m10-n2" if has_ops else None,
        interpolation="bilinear",
        scale=SCALE,
    )
    dataset = timm.data.create_dataset("", case["folder"], transform=transform)
    batches = _loader_of_torch(case, dataset)
    if case["augment"] != "augreg":
        return batches
    classes = len(dataset.reader.class_to_idx)
    mixup = timm.data.Mixup(0.2, num_classes=classes)
    return (mixup(*batch) for batch in batches)


def torchvision(case: dict, versions: dict) -> Iterator:
    """Return the batches of an ImageFolder and torchvision's v2 transforms."""
    from benchmarks.worker_torch import import_timm

    import_timm()  # Names the operators that torchvision may lack.
    import torch
    import torchvision as package
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    versions["torchvision"] = package.__version__
    operations = [
        v2.RandomResizedCrop(SIDE, SCALE),
        v2.RandomHorizontalFlip(),
        *([v2.RandAugment(2, 10)] if case["augment"] != "crop" else []),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ]
    dataset = ImageFolder(case["folder"], v2.Compose(operations))
    batches = _loader_of_torch(case, dataset)
    if case["augment"] != "augreg":
        return batches
    mixup = v2.MixUp(alpha=0.2, num_classes=len(dataset.classes))
    return (mixup(*batch) for batch in batches)


def grain(case: dict, versions: dict) -> Iterator:
    """Return the batches of a Grain pipeline, which decodes by Pillow.

    Grain has no operations on images: the crop is that of a user's function.
    """
    import pathlib

    import grain as package
    import numpy as np
    from PIL import Image

    versions["grain"] = package.__version__
    if case["augment"] != "crop":
        raise ValueError("Grain has no operations on images.")
    paths = sorted(pathlib.Path(case["folder"]).glob("*/*.jpg"))
    names = sorted({path.parent.name for path in paths})

    def load(path, rng):
        with Image.open(path) as image:
            width, height = image.size
            area = width * height * rng.uniform(*SCALE)
            ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
            w = min(round((area * ratio) ** 0.5), width)
            h = min(round((area / ratio) ** 0.5), height)
            left, top = (
                rng.integers(width - w + 1),
                rng.integers(height - h + 1),
            )
            box = (left, top, left + w, top + h)
            bilinear = Image.Resampling.BILINEAR
            image = image.convert("RGB").resize((SIDE, SIDE), bilinear, box)
            pixels = np.asarray(image, "float32") / 127.5 - 1
        if rng.integers(2):
            pixels = pixels[:, ::-1]
        return pixels, np.eye(len(names))[names.index(path.parent.name)]

    threads = len(case["processors"])
    options = package.ReadOptions(num_threads=threads, prefetch_buffer_size=64)
    dataset = package.MapDataset.source(paths).seed(0).shuffle().repeat()
    dataset = dataset.random_map(load).to_iter_dataset(options)
    return iter(dataset.batch(case["batch_size"]))


def train_ours(case: dict, versions: dict) -> Callable[[int], object]:
    """Return the function that makes updates as `trainers.train` does."""
    import keras

    from trainers.recipes.recipe import Recipe
    from trainers.training.trainer import prepare

    versions["keras"] = keras.__version__
    backend = keras.backend.backend()
    versions[backend] = importlib.metadata.version(backend)
    recipe = Recipe(
        dataset=f"folder:{case['folder']}",
        model=case["model"],
        image_size=SIDE,
        batch_size=case["batch_size"],
        augment=AUGMENTATIONS[case["augment"]],
        optimizer="adamw",
        learning_rate=LEARNING_RATE,
        warmup_steps=0,
        total_steps=1_000_000,
        clip_norm=0.0,
    )
    trainer = prepare(recipe, tempfile.mkdtemp())
    loop = trainer.loop
    batches = iter(loop.engine.batches(trainer.train_batches))

    def train(count):
        made, _, _ = loop.compiled.train(batches, count, loop.step)
        loop.numbers["step"] += made

    return train


def train_timm(case: dict, versions: dict) -> Callable[[int], object]:
    """Return the function that trains timm's model on batches of its loader."""
    from benchmarks.worker_torch import timm_model

    batches = timm(case, versions)
    model = timm_model(case, versions)
    return _train_by_torch(model, model, batches, case)


def train_transformers(case: dict, versions: dict) -> Callable[[int], object]:
    """Return the same for transformers, whose examples read by torchvision."""
    batches = torchvision(case, versions)
    import transformers

    versions["transformers"] = transformers.__version__
    config = case["config"]
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=config["width"],
            num_hidden_layers=config["depth"],
            num_attention_heads=config["num_heads"],
            intermediate_size=config["mlp_dim"],
            image_size=SIDE,
            patch_size=config["patch_size"],
            num_labels=config["num_classes"],
        )
    )
    return _train_by_torch(model, lambda x: model(x).logits, batches, case)


def _train_by_torch(model, run, batches, case):
    import torch

    torch.set_num_threads(len(case["processors"]))
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, fused=True
    )

    def train(count):
        for images, labels in itertools.islice(batches, count):
            loss = torch.nn.functional.cross_entropy(run(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    return train


LEARNING_RATE = 1e-3
TRAININGS = {
    "ours": train_ours,
    "ours_jax": train_ours,
    "timm": train_timm,
    "transformers": train_transformers,
}
PACKAGES = {
    "ours": ours,
    "keras": keras_layers,
    "timm": timm,
    "torchvision": torchvision,
    "grain": grain,
}

if __name__ == "__main__":
    answer_requests(make_functions)
