"""Check that a server gives the outputs of the export that it serves."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from keras_vit.serving.client import Client
from keras_vit.serving.comparison import compare_outputs
from keras_vit.serving.errors import ServingError, UnavailableError
from keras_vit.serving.exported_version import ExportedVersion
from keras_vit.serving.warmup import WarmupRecord

NOT_AN_IMAGE = b"\x89PNG\r\n\x1a\n and then nothing"


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a check.

    Args:
        what: What was checked.
        signature: The signature, if it was about one.
        difference: Largest difference from what was expected.
        fault: What is wrong; empty if nothing is.
    """

    what: str
    signature: str = ""
    difference: float | None = None
    fault: str = ""


def check_server(
    client: Client, export: ExportedVersion, tolerance: float
) -> Iterator[Check]:
    """Yield the results of all checks, one after the other.

    Args:
        client: A client of the version of the export.
        export: What is expected.
        tolerance: How far a number may be from that of the export.

    Raises:
        UnavailableError: If the server cannot be reached.
    """
    for what, check in (("status", check_status), ("metadata", check_metadata)):
        found = attempt(check, client, export)
        yield Check(what, "", *found)
        if found[1]:
            return
    records = {record.signature: record for record in export.records}
    for name in export.signatures:
        if name not in records:
            fault = "the warm-up file has no response to compare with"
            yield Check("answer", name, fault=fault)
            continue
        record = records[name]
        for what, check in CHECKS.items():
            if what == "answer" or images_of(record) is not None:
                found = attempt(check, client, record, tolerance)
                yield Check(what, name, *found)


def attempt(check: Callable, *arguments) -> tuple[float | None, str]:
    """Return the difference and the fault that a check finds.

    An error of the server is a fault, unless the server is not there.
    """
    try:
        return check(*arguments)
    except UnavailableError:
        raise
    except ServingError as error:
        return None, str(error)


def check_status(client, export):
    """Check that the version is available."""
    states = {row.version: row for row in client.status()}
    row = states.get(export.version)
    if row is None:
        return None, f"there is no version {export.version}"
    if row.state != "AVAILABLE":
        return None, f"version {row.version} is {row.state} {row.message}"
    return None, ""


def check_metadata(client, export):
    """Check that the server has the signatures of the export."""
    found = client.metadata()
    names = sorted({*found, *export.signatures})
    wrong = [n for n in names if found.get(n) != export.signatures.get(n)]
    return None, f"not as in the export: {', '.join(wrong)}" * bool(wrong)


def check_answer(client, record, tolerance):
    """Compare a response with the one in the warm-up file."""
    found = client.predict(record.inputs, record.signature)
    return compare_outputs(record.outputs, found, tolerance)


def check_batch(client, record, tolerance):
    """Check that the outputs for a batch are in order and independent.

    The batch is an image, its mirror image, and the image twice again, so
    that the reversed order differs from the right one. The outputs must be
    those for each image alone.
    """
    [name] = record.inputs
    image = images_of(record)[:1]
    mirrored = mirror(image)
    alone, other = (
        client.predict({name: x}, record.signature) for x in (image, mirrored)
    )
    batch = np.concatenate([image, mirrored, image, image])
    together = client.predict({name: batch}, record.signature)
    expected = {
        key: np.concatenate([alone[key], other[key], alone[key], alone[key]])
        for key in alone
    }
    return compare_outputs(expected, together, tolerance)


def check_refusal(client, record, tolerance):
    """Check that a wrong image is refused, and a right one accepted after it.

    A model that only counts numbers would accept images of another size with
    as many pixels in all.
    """
    [name] = record.inputs
    wrong = spoil(images_of(record)[:1])
    try:
        client.predict({name: wrong}, record.signature)
    except UnavailableError:
        raise
    except ServingError as error:
        if error.code:
            difference, fault = check_answer(client, record, tolerance)
            return difference, fault and f"after the refusal: {fault}"
    what = "no image" if wrong.dtype == object else f"the shape {wrong.shape}"
    return None, f"a wrong input was accepted: {what}"


def images_of(record: WarmupRecord) -> np.ndarray | None:
    """Return the images or image files of a request, if it has any."""
    if len(record.inputs) != 1:
        return None
    [array] = record.inputs.values()
    is_files = array.ndim == 1 and array.dtype == object
    return array if array.ndim == 4 or is_files else None


def mirror(images: np.ndarray) -> np.ndarray:
    """Return images or image files with left and right exchanged."""
    if images.dtype != object:
        return images[:, :, ::-1]
    import tensorflow as tf

    files = [
        tf.io.encode_png(
            tf.io.decode_image(file, expand_animations=False)[:, ::-1]
        ).numpy()
        for file in images
    ]
    return np.array(files, object)


def spoil(image: np.ndarray) -> np.ndarray:
    """Return an input that must be refused instead of an image or file.

    Two images of half the size, if a side is even.
    """
    if image.dtype == object:
        return np.array([NOT_AN_IMAGE], object)
    for axis in (1, 2):
        if image.shape[axis] % 2 == 0:
            return np.concatenate(np.split(image, 2, axis))
    return np.concatenate([image, image[:, :1]], 1)


# The checks of each signature; all but the first need images as inputs.
CHECKS = {
    "answer": check_answer,
    "batch": check_batch,
    "refusal": check_refusal,
}
