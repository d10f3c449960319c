"""A folder of embeddings: shards of Parquet and a manifest.

A shard has the rows of consecutive images, in the columns `path`, `label`,
`split` and `vector`. `manifest.json` says what they were computed with, and
which shards are complete: it is written after each of them.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from keras_vit.files import DRAFT
from keras_vit.tables import pick
from trainers.evaluation.probing import normalize
from trainers.paths import (
    ContentError,
    Path,
    RemotePath,
    as_path,
    draft_of,
    parse_object,
    read_written,
    write_atomically,
)
from trainers.training.run_folder import list_changes

MANIFEST = "manifest.json"
FORM = 1  # Of the manifest.
DTYPES = {"float32": pa.float32(), "float16": pa.float16()}
# Those that are needed to read the vectors.
ENTRIES = (
    *("source", "directory", "vector", "dtype", "shape"),
    *("num_images", "class_names", "has_several_labels"),
)
SHARD_NAMES = "part-" + 5 * "[0-9]" + ".parquet"
BLOCK_ROWS = 8192  # In memory at once.
# What may differ when an interrupted command goes on.
FREE_ENTRIES = ("source", "data_dir", "origin")


class Shard(NamedTuple):
    """A complete shard, as in the manifest.

    Args:
        file: Its name.
        first: Position of its first image among all, from 0.
        last: The position after its last image.
        rows: Number of its rows: the images that could be read.
        digest: The SHA-256 of the file.
        unreadable: The names of the other images.
    """

    file: str
    first: int
    last: int
    rows: int
    digest: str
    unreadable: Sequence[str]


class Rows(NamedTuple):
    """The rows of a shard.

    Shapes:
        vectors: (N, D), of the dtype of the embeddings.

    Args:
        paths: The names of the images.
        labels: The class of each, or a list of classes; None if unknown.
        splits: The split of each; None of single files.
        vectors: The vectors.
    """

    paths: list[str]
    labels: list
    splits: list[str | None]
    vectors: np.ndarray


def make_schema(description: Mapping) -> pa.Schema:
    """Return the schema of the shards of a manifest."""
    label = pa.string()
    if description["has_several_labels"]:
        label = pa.list_(pa.string())
    number = pick(DTYPES, description["dtype"], "dtype")
    element = pa.field("element", number, nullable=False)
    vector = pa.list_(element, int(np.prod(description["shape"])))
    return pa.schema(
        [
            pa.field("path", pa.string(), nullable=False),
            pa.field("label", label),
            pa.field("split", pa.string()),
            pa.field("vector", vector, nullable=False),
        ]
    )


def write_shard(
    folder: Path,
    schema: pa.Schema,
    index: int,
    first: int,
    last: int,
    rows: Rows,
    unreadable: Sequence[str] = (),
) -> Shard:
    """Write a shard, which the manifest does not have yet.

    Args:
        folder: The folder.
        schema: See `make_schema`.
        index: Number of shards before it.
        first: Position of its first image among all, from 0.
        last: The position after its last image.
        rows: Its rows.
        unreadable: The images between these positions without a row.
    """
    name = f"part-{index:05d}.parquet"
    *columns, field = schema
    arrays = [
        pa.array(values, column.type) for values, column in zip(rows, columns)
    ]
    numbers = pa.array(rows.vectors.ravel())
    vectors = pa.FixedSizeListArray.from_arrays(numbers, type=field.type)
    table = pa.table([*arrays, vectors], schema=schema)
    with draft_of(folder / name) as draft:
        # Floats hardly shrink, and plain ones are read fastest.
        pa.parquet.write_table(
            table,
            draft,
            compression="none",
            use_dictionary=["label", "split"],
            write_statistics=False,
        )
        digest = digest_file(draft)
    return Shard(name, first, last, table.num_rows, digest, list(unreadable))


class EmbeddingWriter:
    """The manifest of a folder; goes on with the shards that it has.

    Args:
        folder: The folder, which need not exist.
        description: What the embeddings are computed with, in values of JSON.

    Raises:
        ValueError: If the folder holds embeddings that were computed
            otherwise, or Parquet files of something else.
    """

    def __init__(self, folder: Path, description: Mapping):
        self.folder = folder
        self.shards: list[Shard] = []
        self._description = dict(description)
        if (folder / MANIFEST).exists():
            there, self.shards = read_manifest(folder)
            self._check_same(there)
        elif others := self._others():
            raise ValueError(
                "`out` must be a folder without other Parquet files. Received: "
                f"out={str(folder)!r} with {others[0].name!r}"
            )
        self.remove_drafts()
        self._write_manifest()

    @property
    def position(self) -> int:
        """The position of the first image that is in no shard."""
        return self.shards[-1].last if self.shards else 0

    def add(self, shard: Shard):
        """Add the next shard, which is written, to the manifest."""
        self.shards.append(shard)
        self._write_manifest()

    def remove_drafts(self):
        """Remove what commands or workers that were killed have left."""
        if not isinstance(self.folder, RemotePath):
            for draft in self.folder.glob(f"{DRAFT}*"):
                draft.unlink(missing_ok=True)

    def remove_others(self):
        """Remove shards of a command that was killed and had other spans."""
        kept = {shard.file for shard in self.shards}
        for path in self._others(SHARD_NAMES):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _others(self, names="*.parquet"):
        if isinstance(self.folder, RemotePath):
            return []
        return sorted(self.folder.glob(names))

    def _check_same(self, there):
        # JSON has lists in place of tuples.
        new, old = (
            json.loads(json.dumps(each)) for each in (self._description, there)
        )
        new = {n: x for n, x in new.items() if n not in FREE_ENTRIES}
        old = {name: old.get(name) for name in new}
        if changed := list_changes(old, new):
            raise ValueError(
                "`out` holds embeddings that were computed otherwise; choose "
                "another folder, or delete it. "
                f"Received: out={str(self.folder)!r} with {'; '.join(changed)}"
            )

    def _write_manifest(self):
        shards = [shard._asdict() for shard in self.shards]
        content = {"form": FORM, **self._description, "shards": shards}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_atomically(self.folder / MANIFEST, text)


def read_manifest(folder: Path) -> tuple[dict, list[Shard]]:
    """Return the description and the complete shards of a folder.

    Raises:
        ContentError: If its manifest is not what was written there.
    """

    def parse(text):
        content = parse_object(text)
        if content.pop("form") != FORM:
            raise ValueError("it is of another version")
        shards = [Shard(**row) for row in content.pop("shards")]
        starts = [0, *(shard.last for shard in shards)]
        if [shard.first for shard in shards] != starts[:-1]:
            raise ValueError("its shards do not follow each other")
        for name in ENTRIES:
            content[name]  # noqa: B018  A KeyError names what is missing.
        if pair := content.get("pixel_range"):
            content["pixel_range"] = tuple(pair)  # JSON has lists alone.
        return content, shards

    remedy = "run `keras-vit embed` again, into a new folder"
    return read_written(folder / MANIFEST, parse, remedy)


def digest_file(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """The embeddings in a folder; vectors are read when they are asked for.

    Args:
        folder: The folder.
        description: The entries of the manifest but the shards.
        shards: The shards, in their order.
    """

    folder: Path
    description: Mapping
    shards: Sequence[Shard]

    def __len__(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return int(np.prod(self.description["shape"]))

    @functools.cached_property
    def paths(self) -> list[str]:
        """The name of each image."""
        return self._column("path")

    @functools.cached_property
    def labels(self) -> list:
        """The class of each image, or a list of classes; None if unknown."""
        return self._column("label")

    @functools.cached_property
    def splits(self) -> list[str | None]:
        """The split of each image."""
        return self._column("split")

    def file_of(self, row: int) -> str:
        """Return the path of an image, also from another working directory.

        Of a data set whose images are no files, it names nothing.
        """
        return os.path.join(self.description["directory"], self.paths[row])

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the vectors in blocks of at most BLOCK_ROWS.

        Shapes:
            yields the row of the first vector, and (n, D), float32.
        """
        start = 0
        for shard in self.shards:
            path = self.folder / shard.file
            with pa.parquet.ParquetFile(path, memory_map=True) as file:
                for batch in file.iter_batches(BLOCK_ROWS, columns=["vector"]):
                    numbers = batch.column(0).flatten().to_numpy()
                    block = numbers.reshape(-1, self.width)
                    yield start, block.astype("float32", copy=False)
                    start += len(block)

    def unit_blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield `blocks` of vectors of length 1; zeros stay zeros."""
        for start, block in self.blocks():
            yield start, normalize(block)

    def vectors(self, unit: bool = False) -> np.ndarray:
        """Return all vectors, (N, D), float32.

        Args:
            unit: Whether to divide each by its length; zeros stay zeros.
        """
        found = np.empty((len(self), self.width), "float32")
        for start, block in self.unit_blocks() if unit else self.blocks():
            found[start : start + len(block)] = block
        return found

    def _column(self, name):
        found = []
        for shard in self.shards:
            table = pa.parquet.read_table(
                self.folder / shard.file, columns=[name], partitioning=None
            )
            found += table.column(name).to_pylist()
        return found


def open_embeddings(folder: str | os.PathLike) -> Embeddings:
    """Return the embeddings that `keras-vit embed` wrote, after checks.

    Args:
        folder: The folder, on this machine.

    Raises:
        ValueError: If it holds none, or the command has not finished.
        ContentError: If a file is missing or not what was written there.

    Example:
        >>> open_embeddings("nowhere")
        Traceback (most recent call last):
        ...
        ValueError: `embeddings` must be a folder of `keras-vit embed` on ...
    """
    path = as_path(folder)
    if isinstance(path, RemotePath) or not (path / MANIFEST).is_file():
        raise ValueError(
            "`embeddings` must be a folder of `keras-vit embed` on this "
            f"machine, with a {MANIFEST}. Received: embeddings={str(path)!r}"
        )
    description, shards = read_manifest(path)
    done = shards[-1].last if shards else 0
    if done != description["num_images"]:
        raise ValueError(
            "`embeddings` must be complete: run the same `keras-vit embed` "
            f"again. Received: embeddings={str(path)!r} with {done:,} of "
            f"{description['num_images']:,} images"
        )
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        check = functools.partial(_check_shard, path, make_schema(description))
        list(pool.map(check, shards))
    return Embeddings(path, description, shards)


def _check_shard(folder, schema, shard):
    """Raise a ContentError unless a shard is what was written there."""
    path, fault = folder / shard.file, None
    if not path.is_file():
        fault = "it is missing"
    elif digest_file(path) != shard.digest:
        fault = "its SHA-256 is another one"
    else:
        with pa.parquet.ParquetFile(path) as file:
            if not file.schema_arrow.equals(schema):
                found = file.schema_arrow.field("vector").type
                fault = f"its vectors are {found}"
            elif file.metadata.num_rows != shard.rows:
                fault = f"it has {file.metadata.num_rows:,} rows"
    if fault:
        raise ContentError(
            f"{path} is not what was written there ({fault}); run `keras-vit "
            "embed` again, into a new folder"
        )
