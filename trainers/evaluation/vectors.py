"""The vectors that a model computes of images, of any number of them."""

import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit.models.features import without_head
from keras_vit.models.vit import block_indices, check_vision_transformer
from keras_vit.progress import ProgressBar
from keras_vit.tables import guess
from keras_vit.texts import load_text_encoder
from trainers.data.batches import read_images
from trainers.data.datasets import ImageDataset, open_dataset
from trainers.data.decoding import BadExamples, decode_file
from trainers.data.file_lists import FILE_LISTS
from trainers.data.inspection import (
    THUMBNAIL_SIDE,
    make_thumbnail,
    read_files,
    to_colours,
)
from trainers.data.pixels import PixelOptions
from trainers.data.readers.folder import UNLABELLED
from trainers.data.readers.image_files import ImageFiles
from trainers.data.readers.image_paths import (
    leave_out_unreadable,
    printable,
)
from trainers.data.splits import format_ranges, take_ranges
from trainers.evaluation.embeddings import (
    Embeddings,
    EmbeddingWriter,
    Rows,
    Shard,
    make_schema,
    write_shard,
)
from trainers.evaluation.predictions import make_load_image
from trainers.evaluation.ray_workers import RayCluster
from trainers.paths import Path, as_path, check_folder, check_writable
from trainers.training.provenance import (
    describe_origin,
    digest_model,
)
from trainers.training.run_folder import NamedModel, RunFolder

SHARD_ROWS = 4096
FILES = "files"  # The data set, and its split, of files without one.
KINDS = ("token", "mean", "grid")
VECTORS = (
    "pooled, output, token, mean, grid, or block:N with a number from 0, of "
    "which block:N:token and block:N:grid are other parts"
)


def make_encoder(model: keras.Model, vector: str = "pooled") -> keras.Model:
    """Return the model from images to the vectors that stand for them.

    Both models share their layers.

    Shapes:
        The model returns (B, D), of `grid` (B, h, w, D), float32; what a
        distilled head reads is (B, 2, D).

    Args:
        model: A model whose images have a fixed size.
        vector: Which vector: `pooled`, the input of the head, of any model
            with one; `output`, what the model returns, with which texts are
            compared if it is the image tower of CLIP or SigLIP; of a
            VisionTransformer `token`, the class token, `mean`, that of the
            patches, and `grid`, all patches, each after the last norm.
            `block:N` is the mean of the patches after block N, from 0 or,
            negative, from the end; `block:N:token` and `block:N:grid` are the
            others after that block. Several numbers, as in `block:3,7`, join
            their vectors.

    Raises:
        ValueError: If there is no such vector, or the model does not have it.

    Example:
        >>> model = VisionTransformer(VARIANTS["mu/16"].config)
        >>> make_encoder(model, "block:0,-1:grid").output_shape
        (None, 14, 14, 64)
    """
    if vector == "pooled":
        encoder = without_head(model)
        # A distilled head reads two tokens.
        pooling = getattr(getattr(model, "config", None), "pooling", None)
        if len(encoder.output_shape) != 2 and pooling != "distilled":
            raise ValueError(
                "`vector` must be token, mean or grid for a model without "
                "pooling. Received: vector='pooled', "
                f"output_shape={encoder.output_shape}"
            )
        (outputs,) = encoder.outputs
    elif vector == "output":
        (outputs,) = model.outputs
        if len(outputs.shape) != 2:
            raise ValueError(
                "`vector` must be token, mean or grid for a model without "
                "pooling. Received: vector='output', "
                f"output_shape={model.output_shape}"
            )
    else:
        check_vision_transformer(model)
        if model.config.patch_dropout_rate:
            model = model.with_patch_dropout(0)
        outputs = _join_blocks(model, *parse_vector(vector), vector)
    if keras.backend.standardize_dtype(outputs.dtype) != "float32":
        outputs = ops.cast(outputs, "float32")
    return keras.Model(model.inputs[0], outputs)


def parse_vector(vector: str) -> tuple[str, list[int]]:
    """Return the kind, one of KINDS, and the blocks that a vector names.

    Raises:
        ValueError: If it names none.
    """
    if vector in KINDS:
        return vector, [-1]
    found = re.fullmatch(r"block:(-?\d+(?:,-?\d+)*)(?::(\w+))?", vector)
    kind = found and (found[2] or "mean")
    if kind not in KINDS:
        raise ValueError(
            f"`vector` must be {VECTORS}. Received: vector={vector!r}"
            f"{guess(vector, ('pooled', 'output', *KINDS))}"
        )
    return kind, [int(number) for number in found[1].split(",")]


def _join_blocks(model, kind, blocks, vector):
    """Return the symbolic vectors after some blocks, joined."""
    block_indices(model.config.depth, blocks, "vector")
    if kind == "token" and not model.config.use_class_token:
        raise ValueError(
            "`vector` must be another for a model without a class token. "
            f"Received: vector={vector!r}"
        )
    # In the order of the blocks as they are asked for.
    found = [
        model.features(model.inputs[0], blocks=[block], with_prefix=True)[0]
        for block in blocks
    ]
    parts = [prefix[:, 0] if kind == "token" else x for x, prefix in found]
    x = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)
    return ops.mean(ops.cast(x, "float32"), (1, 2)) if kind == "mean" else x


def open_files(
    paths: Sequence[str], source: RunFolder | NamedModel
) -> ImageDataset:
    """Return image files as a data set without labels.

    Args:
        paths: The files; what is named twice is read once.
        source: The model that reads them.

    Raises:
        ValueError: If a file does not exist, or there is none.
    """
    for path in paths:
        if not os.path.isfile(path) and not os.path.islink(path):
            raise ValueError(f"There is no image file {printable(path)!r}.")
    rows = leave_out_unreadable([(path, -1) for path in dict.fromkeys(paths)])
    if not rows:
        raise ValueError("There is no image file that can be read.")
    reader = ImageFiles(
        [], {FILES: rows}, pixels=PixelOptions(None, source.pixel_range)
    )
    return ImageDataset(FILES, reader, None, FILES)


def embed(
    source: RunFolder | NamedModel,
    dataset: ImageDataset,
    folder: Path,
    *,
    vector: str = "pooled",
    dtype: str = "float32",
    batch_size: int = 128,
    preprocess: str | None = None,
    max_bad_examples: int = 0,
    shard_rows: int = SHARD_ROWS,
    data_dir: str | None = None,
    cluster: RayCluster | None = None,
) -> list[str]:
    """Write the vectors of the evaluation split of a data set to a folder.

    Shows a progress bar. Interrupted at any moment and called again, it goes
    on after the last complete shard, and ends with the same rows as without.

    Args:
        source: A finished run, or a model known by name.
        dataset: The data set, also without labels, see `open_files`.
        folder: The folder to write to.
        vector: See `make_encoder`.
        dtype: float32 or float16.
        batch_size: Number of images per batch.
        preprocess: The operations on images before the model, see
            `eval_batches`; None for those of the model.
        max_bad_examples: Number of unreadable images to leave out at most.
        shard_rows: Number of images of a shard, rounded up to whole batches.
        data_dir: The folder of the data sets of TFDS, for later commands.
        cluster: Its workers compute the vectors and write the shards; None for
            this process.

    Returns:
        The names of the images that could not be read.

    Raises:
        ValueError: If the data do not fit the model, the folder holds other
            embeddings, a vector is not finite, or more images than allowed
            cannot be read.
        OSError: If the folder cannot be written, or another process does.
    """
    check_folder(folder, "out")
    check_writable(folder, "out")
    model = source.load_model()
    dataset = fit_channels(dataset, model)
    encoder = make_encoder(model, vector)
    if preprocess is None:
        preprocess = source.preprocess
    num_images = dataset.num_examples(dataset.eval_split)
    data = dataclasses.replace(dataset, train_split=None)
    origin = describe_origin(data)
    class_names = dataset.class_names
    if class_names == [UNLABELLED]:
        class_names = []
    pixels = getattr(dataset.reader, "pixels", None)
    description = {
        "source": describe_source(source),
        "model_digest": digest_model(model),
        "vector": vector,
        "shape": list(encoder.output_shape[1:]),
        "dtype": dtype,
        "image_shape": list(model.input_shape[1:]),
        "preprocess": preprocess,
        "pixel_range": pixels and pixels.pixel_range,
        "dataset": dataset.name,
        "split": dataset.eval_split,
        "data_digest": origin.pop("data_digest") + _digest_paths(data),
        "num_images": num_images,
        "class_names": class_names,
        "has_several_labels": (
            dataset.has_several_labels
            or dataset.has_several_classes(dataset.eval_split)
        ),
        "directory": os.getcwd(),
        "data_dir": data_dir,
        "origin": origin,
    }
    with RunFolder(folder).claimed("out"):
        writer = EmbeddingWriter(folder, description)
        bad_examples = BadExamples(max_bad_examples)
        for shard in writer.shards:
            for name in shard.unreadable:
                bad_examples.report(name)
        first = writer.position
        batch_size = max(1, min(batch_size, num_images - first))
        # Shards end with batches.
        step = -(-shard_rows // batch_size) * batch_size
        spans = [
            Span(
                len(writer.shards) + index, start, min(start + step, num_images)
            )
            for index, start in enumerate(range(first, num_images, step))
        ]
        work = Work(dataset, description, batch_size, bad_examples.limit)
        with ProgressBar(
            "Embedding", "images", num_images, has_rate=True
        ) as bar:
            bar.update(first)
            if cluster is None:
                shards = work.write(encoder, folder, spans, bar)
            else:
                make = functools.partial(
                    make_worker, dataclasses.replace(source), folder, work
                )
                shards = cluster.map(make, spans)
            for shard in shards:
                for name in shard.unreadable:
                    bad_examples.report(name)
                writer.add(shard)
                bar.update(shard.last)
        writer.remove_drafts()
        writer.remove_others()
    if not any(shard.rows for shard in writer.shards):
        raise ValueError(
            "`dataset` must have images that can be read. "
            f"Received: {dataset.name!r}"
        )
    return [name for shard in writer.shards for name in shard.unreadable]


def fit_channels(dataset: ImageDataset, model: keras.Model) -> ImageDataset:
    """Return a data set whose image files have the channels of a model.

    Raises:
        ValueError: If the model does not read images of one size, or those of
            the data set, which are no files, have other channels.
    """
    _, height, width, channels = model.input_shape
    pixels = getattr(dataset.reader, "pixels", None)
    if pixels is not None and dataset.channels != channels:
        dataset = dataset.with_pixels(pixels._replace(channels=channels))
    if None in (height, width) or channels != dataset.channels:
        raise ValueError(
            "`model` must take images of a fixed size, with the channels of "
            f"those of the data set. Received: input_shape={model.input_shape}"
            f", {dataset.name!r} with {dataset.channels} channels"
        )
    return dataset


def _digest_paths(dataset):
    """Return a checksum of the paths of files that no data set names."""
    if dataset.name != FILES:
        return ""
    paths = [os.path.abspath(path) for path, _ in dataset.reader.files[FILES]]
    text = "\0".join(map(printable, paths))
    return f"-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def describe_source(source: RunFolder | NamedModel) -> dict[str, str]:
    """Return the flags of a source, of any working directory."""
    if isinstance(source, RunFolder):
        return {"run_dir": _absolute(str(source))}
    return {"model": _absolute(str(source))}


def _absolute(path):
    is_file = os.path.exists(os.path.expanduser(path))
    return os.path.abspath(os.path.expanduser(path)) if is_file else path


class Span(NamedTuple):
    """The images of a shard: its number, and positions among all images."""

    index: int
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Work:
    """Computes the vectors of images of a data set, and writes their shards.

    Args:
        dataset: The data set.
        description: That of the manifest.
        batch_size: Number of images per batch.
        max_bad_examples: Number of unreadable images to leave out at most.
    """

    dataset: ImageDataset
    description: Mapping
    batch_size: int
    max_bad_examples: int

    def write(
        self,
        encoder: keras.Model,
        folder: Path,
        spans: Sequence[Span],
        bar: ProgressBar | None = None,
    ) -> Iterator[Shard]:
        """Write consecutive shards that end with batches; yield each.

        Args:
            encoder: The model from images to vectors.
            folder: The folder of the embeddings.
            spans: The images of the shards.
            bar: Shows the position among all images.
        """
        if not spans:
            return
        bad_examples = BadExamples(self.max_bad_examples)
        batches = read_images(
            self.dataset,
            spans[0].first,
            spans[-1].last,
            image_size=self.description["image_shape"][:2],
            batch_size=self.batch_size,
            preprocess=self.description["preprocess"],
            bad_examples=bad_examples,
        )
        schema, spans = make_schema(self.description), iter(spans)
        pending, (index, first, last) = [], next(spans)
        position = first
        with bad_examples.named_errors():
            for images, labels, are_good, names in batches.as_numpy_iterator():
                vectors = self._compute(encoder, images, are_good, names)
                if hasattr(labels, "to_list"):  # Ragged.
                    labels = labels.to_list()
                pending.append((vectors, labels, are_good, names))
                position += len(names)
                if bar is not None:
                    bar.update(position)
                if position == last:
                    rows, unreadable = self._take_rows(first, last, pending)
                    yield write_shard(
                        folder, schema, index, first, last, rows, unreadable
                    )
                    pending, (index, first, last) = [], next(spans, [None] * 3)

    def _compute(self, encoder, images, are_good, names):
        """Return the vectors of a batch, (b, D).

        All batches have the same shape, which is compiled once.
        """
        count, dtype = len(images), self.description["dtype"]
        if missing := self.batch_size - count:
            zeros = np.zeros((missing, *images.shape[1:]), images.dtype)
            images = np.concatenate([images, zeros])
        vectors = encoder.predict_on_batch(images)[:count].reshape(count, -1)
        with np.errstate(over="ignore"):
            stored = vectors.astype(dtype)
        wrong = are_good & ~np.isfinite(stored).all(-1)
        if wrong.any():
            name = printable(names[wrong][0])
            if np.isfinite(vectors[wrong]).all():
                raise ValueError(
                    "`dtype` must be float32, as a number is too large for "
                    f"float16. Received: dtype={dtype!r}, {name}"
                )
            raise ValueError(
                "`model` must give finite vectors. Received: NaN or infinity "
                f"for {name}"
            )
        return stored

    def _take_rows(self, first, last, batches):
        """Return the rows of the batches of a shard, and what is unreadable."""
        dataset = self.dataset
        splits = [
            None if dataset.name == FILES else name
            for name, start, end in take_ranges(
                dataset.ranges(dataset.eval_split), first, last
            )
            for _ in range(start, end)
        ]
        label_of = _label_writer(
            self.description["class_names"],
            self.description["has_several_labels"],
        )
        vectors, labels, are_good, names = zip(*batches)
        rows, unreadable = [], []
        for split, label, is_good, name in zip(
            splits,
            *map(itertools.chain.from_iterable, (labels, are_good, names)),
        ):
            if is_good:
                rows.append((printable(name), label_of(label), split))
            else:
                unreadable.append(printable(name))
        good = [x[kept] for x, kept in zip(vectors, are_good)]
        columns = map(list, zip(*rows)) if rows else ([], [], [])
        return Rows(*columns, np.concatenate(good)), unreadable


def make_worker(
    source: RunFolder | NamedModel, folder: Path, work: Work
) -> Callable[[Span], Shard]:
    """Return the function that writes a shard, on any machine of a cluster.

    Raises:
        ValueError: If the model is not the one that the manifest names.
    """
    model = source.load_model()
    _check_digest(work.description, model, source)
    encoder = make_encoder(model, work.description["vector"])

    def write(span):
        [shard] = work.write(encoder, folder, [span])
        return shard

    return write


def _check_digest(description, model, source):
    digest, wanted = digest_model(model), description["model_digest"]
    if digest != wanted:
        raise ValueError(
            "`model` must be the one that computed the embeddings, with the "
            f"digest {wanted}. Received: {source} with the digest {digest}"
        )


def _label_writer(class_names, has_several):
    """Return the function from labels as numbers to those of a shard."""

    def name(number):
        is_known = 0 <= number < len(class_names)
        return class_names[number] if is_known else None

    def name_several(label):
        label = np.asarray(label)
        if label.dtype.kind == "f":  # 1, 0 or NaN for each class.
            label = np.flatnonzero(label == 1)
        return [class_names[int(number)] for number in np.ravel(label)]

    return name_several if has_several else lambda label: name(int(label))


def open_source_of(embeddings: Embeddings) -> RunFolder | NamedModel:
    """Return the model that the manifest of embeddings names."""
    described = embeddings.description
    if "run_dir" in described["source"]:
        return RunFolder(as_path(described["source"]["run_dir"]))
    is_grey = described["image_shape"][-1] == 1
    return NamedModel(described["source"]["model"], is_grey)


def load_model_of(
    embeddings: Embeddings, source: RunFolder | NamedModel | None = None
) -> keras.Model:
    """Return the model that computed embeddings.

    Raises:
        ValueError: If it is another one.
    """
    source = source or open_source_of(embeddings)
    model = source.load_model()
    _check_digest(embeddings.description, model, source)
    return model


def embed_texts(embeddings: Embeddings, texts: Sequence[str]) -> np.ndarray:
    """Return the vectors of texts, to compare with embeddings of images.

    Shapes:
        returns: (N, D), float32, of length 1.

    Args:
        embeddings: The outputs of the image tower of a model that has a text
            tower, too.
        texts: The texts.

    Raises:
        ValueError: If they are others, or the model is another one.
    """
    described = embeddings.description
    if described["vector"] != "output" or "model" not in described["source"]:
        found = {**described["source"], "vector": described["vector"]}
        raise ValueError(
            "`text` needs embeddings by --vector=output of a --model of images "
            "and texts, such as hf://openai/clip-vit-base-patch32. Received: "
            + ", ".join(f"{name}={value!r}" for name, value in found.items())
        )
    load_model_of(embeddings)  # A file may have changed.
    return load_text_encoder(described["source"]["model"])(texts)


def embed_files(
    embeddings: Embeddings,
    paths: Sequence[str],
    source: RunFolder | NamedModel | None = None,
) -> np.ndarray:
    """Return the vectors of image files, as those of embeddings were computed.

    Shapes:
        returns: (N, D), float32.

    Args:
        embeddings: The embeddings.
        paths: Image files.
        source: Their model; None for the one that the manifest names.

    Raises:
        ValueError: If the model is another one, or a file is no image.
        OSError: If a file cannot be read.
    """
    described = embeddings.description
    load = make_load_image(
        tuple(described["image_shape"]),
        described["preprocess"],
        described["pixel_range"],
    )
    # A wrong path is found before the model is loaded.
    images = [load(path) for path in paths]
    model = load_model_of(embeddings, source)
    encoder = make_encoder(model, described["vector"])
    return np.stack(
        [encoder.predict_on_batch(x[None]).reshape(-1) for x in images]
    )


def read_pictures(
    embeddings: Embeddings, rows: Sequence[int], side: int = THUMBNAIL_SIDE
) -> dict[int, bytes]:
    """Return small JPEGs of images by their rows, for pages.

    An image that is not there any more is left out.

    Args:
        embeddings: The embeddings of the images.
        rows: Their rows.
        side: Largest side of a picture, in pixels.

    Raises:
        ValueError: If the data set of the images is not there any more.
    """
    described = embeddings.description
    rows = list(dict.fromkeys(int(row) for row in rows))
    kind = described["dataset"].partition(":")[0]
    if kind in (FILES, *FILE_LISTS):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            drawn = pool.map(
                lambda row: draw_file(
                    embeddings, embeddings.file_of(row), side
                ),
                rows,
            )
            drawn = dict(zip(rows, drawn))
        return {row: picture for row, picture in drawn.items() if picture}
    dataset = open_dataset(
        described["dataset"],
        described["data_dir"],
        eval_split=described["split"],
    )
    ranges = dataset.ranges(described["split"])
    found, start = {}, 0
    for shard in embeddings.shards:
        end = start + shard.rows
        wanted = {embeddings.paths[x]: x for x in rows if start <= x < end}
        start = end
        if not wanted:
            continue
        part = take_ranges(ranges, shard.first, shard.last)
        for name, _, encoded in read_files(dataset, format_ranges(part)):
            if name in wanted and (picture := _draw(embeddings, encoded, side)):
                found[wanted[name]] = picture
    return found


def draw_file(
    embeddings: Embeddings, path: str, side: int = THUMBNAIL_SIDE
) -> bytes | None:
    """Return a small JPEG of an image file; None if it cannot be read.

    Args:
        embeddings: Say how the pixels are read.
        path: The file.
        side: Largest side of the picture, in pixels.
    """
    try:
        with open(path, "rb") as file:
            return _draw(embeddings, file.read(), side)
    except OSError:
        return None


def _draw(embeddings, encoded, side):
    channels = embeddings.description["image_shape"][-1]
    pixels = PixelOptions(
        None if channels in (1, 3) else channels,
        embeddings.description["pixel_range"],
    )
    try:
        return make_thumbnail(to_colours(decode_file(encoded, pixels)), side)
    except ValueError:
        return None
