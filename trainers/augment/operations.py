"""Image augmentation, written as a line of operations.

`"inception_crop|flip_lr|randaugment(2, 10)|mixup(0.2)"` is read from left to
right. An operation is `name` or `name(arguments)`, arguments being numbers,
by place or by name. Operations on single images (OPS) come first, those on
batches (BATCH_OPS) last. Every operation draws from the seed of its example
and from its place in the line alone, so that a run can be repeated whatever
the number of threads.
"""

import dataclasses
import inspect
import math
import re
import typing
from collections.abc import Callable

import tensorflow as tf

from keras_vit.image_decoding import cut_window
from keras_vit.tables import pick
from trainers.augment.randaugment import apply_randaugment


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What a line of operations does to images and to batches.

    Args:
        image: Function of an image (H, W, C) of floats from 0 to 255 and a
            seed (2,) of integers; returns an image (H', W', C). Errors show
            what it is given as `name`.
        batch: Function of images (B, H, W, C), labels (B, classes), weights
            (B,) and a seed (2,); returns images and labels. Images of weight
            0, those that are not there, are not mixed with others.
        value_range: What the caller has to make of 0 and of 255.
        pick_window: Function of the shape (3,) of an image and a seed;
            returns top, left, height and width of all that counts, so that
            the rest need not be decoded: `image` takes what is inside, too,
            and `is_window=True`. None if all of the image counts.
    """

    image: Callable
    batch: Callable
    value_range: tuple[float, float] = (-1.0, 1.0)
    pick_window: Callable | None = None


def parse_augmentation(
    text: str, image_size: tuple[int, int], argument: str = "augment"
) -> Augmentation:
    """Return what `text` describes.

    If there are several operations on batches, one of them is drawn for each
    batch, all alike.

    Args:
        text: Operations separated by `|`; an empty text changes nothing.
        image_size: (height, width) that operations give to images if they
            are not told another size.
        argument: What the caller knows `text` as; errors show it.

    Raises:
        ValueError: If an operation is unknown, its arguments do not fit or it
            is out of place. Shows where.

    Example:
        >>> augmentation = parse_augmentation("flip_lr|random_crop", (4, 4))
        >>> image = augmentation.image(np.ones((8, 6, 3), "float32"), (0, 0))
        >>> tuple(image.shape)
        (4, 4, 3)
    """
    operations, batch_operations, value_range = [], [], None
    reader = _Reader(text, argument)
    for place, call in enumerate(reader.read_calls()):
        if call.name not in BATCH_OPS and batch_operations:
            reader.fail(
                "operations on images must come before those on batches. "
                f"Received: {call.name} behind them",
                call.position,
            )
        if call.name in OPS and value_range:
            reader.fail(
                "value_range must be the last operation on images. "
                f"Received: {call.name} behind it",
                call.position,
            )
        operation = _make_operation(call, reader, tuple(image_size))
        if call.name in BATCH_OPS:
            batch_operations.append((place, operation))
        elif call.name == "value_range":
            value_range = operation
        else:
            operations.append((place, operation))

    first = operations[0][1] if operations else None
    is_crop = isinstance(first, _WindowCrop)

    def augment(image, seed, is_window=False, name=""):
        rest = operations
        if is_window:
            image, rest = first.resize(image), operations[1:]
        for place, operation in rest:
            if isinstance(operation, _Crop):
                image = operation.check(image, name)
            image = operation(image, tf.random.fold_in(seed, place))
        return image

    def pick_window(shape, seed):
        return first.pick_window(shape, tf.random.fold_in(seed, 0))

    def augment_batch(images, labels, weights, seed):
        return _mix(batch_operations, images, labels, weights, seed)

    return Augmentation(
        augment,
        augment_batch,
        value_range or (-1.0, 1.0),
        pick_window if is_crop else None,
    )


def describe_augreg(level: str) -> str:
    """Return the text of one of the AUGREG_LEVELS, as for pre-training.

    Raises:
        ValueError: If there is no such level.

    Example:
        >>> describe_augreg("medium1")
        'inception_crop|flip_lr|randaugment(2, 15)|mixup(0.2)'
    """
    num_ops, magnitude, alpha = pick(AUGREG_LEVELS, level, "level")
    text = "inception_crop|flip_lr"
    if num_ops:
        text += f"|randaugment({num_ops}, {magnitude})"
    if alpha:
        text += f"|mixup({alpha})"
    return text


# Reading.


@dataclasses.dataclass(frozen=True)
class _Call:
    """An operation as it is written; `arguments` are (position, name, value).

    A position counts the characters before it; a name may be None.
    """

    position: int
    name: str
    arguments: list


class _Reader:
    """Reads the calls of a text, and shows what is wrong with them."""

    TOKEN = re.compile(
        r"\s*(?:(?P<none>None\b)|(?P<name>[A-Za-z_]\w*)"
        r"|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
        r"|(?P<sign>\S)|(?P<end>\Z))",
        re.ASCII,
    )
    KINDS = {
        "none": "None",
        "name": "a name",
        "number": "a number",
        "end": "the end",
    }

    def __init__(self, text, argument):
        self.text = text
        self.argument = argument
        self.advance(0)

    def fail(self, message, position):
        """Raise an error that points at a position of the text."""
        line = re.sub(r"\s", " ", self.text)  # It may have several.
        raise ValueError(
            f"`{self.argument}`: {message}\n  {line}\n  {' ' * position}^"
        ) from None

    def advance(self, start):
        match = self.TOKEN.match(self.text, start)
        self.kind = match.lastgroup
        self.token = match[self.kind]
        self.position = match.start(self.kind)
        self.end = match.end()

    def sees(self, *wanted):
        """Return whether the next token is one of these kinds or signs."""
        return (self.token if self.kind == "sign" else self.kind) in wanted

    def take(self, *wanted):
        """Return the next token, which must be one of `wanted`, and go on."""
        if not self.sees(*wanted):
            rule = " or ".join(self.KINDS.get(w, repr(w)) for w in wanted)
            received = repr(self.token) if self.token else "the end"
            self.fail(
                f"expected {rule}, as in flip_lr|pad_crop(4). "
                f"Received: {received}",
                self.position,
            )
        token = self.token
        self.advance(self.end)
        return token

    def read_calls(self):
        """Yield each _Call of the text."""
        separator = "" if self.sees("end") else "|"
        while separator == "|":
            position, name, arguments = self.position, self.take("name"), []
            separator = self.take("(", "|", "end")
            if separator == "(":
                arguments = self.read_arguments()
                separator = self.take("|", "end")
            yield _Call(position, name, arguments)

    def read_arguments(self):
        """Return the arguments up to the closing bracket."""
        arguments = []
        while not self.sees(")"):
            position, name = self.position, None
            if self.sees("name"):
                name = self.take("name")
                self.take("=")
            value = self.take("number", "none")
            arguments.append((position, name, _to_number(value)))
            if not self.sees(")"):
                self.take(",", ")")
        self.take(")")
        return arguments


def _to_number(token):
    if token == "None":
        return None
    return int(token) if re.fullmatch(r"[-+]?\d+", token) else float(token)


class _ArgumentError(ValueError):
    """An argument of an operation is out of range."""

    def __init__(self, name, rule, value):
        received = f"{name}={_show(value)}"
        super().__init__(f"`{name}` must be {rule}. Received: {received}")
        self.name = name


def _require(condition, name, rule, value):
    if not condition:
        raise _ArgumentError(name, rule, value)


def _make_operation(call, reader, image_size):
    """Return what the factory of a call makes of its arguments."""
    try:
        factory = pick(OPS | BATCH_OPS, call.name, "operation")
    except ValueError as error:
        reader.fail(str(error), call.position)
    # What a factory takes by keyword alone is not for the text to say.
    known = inspect.signature(factory).parameters
    parameters = {n: p for n, p in known.items() if p.kind != p.KEYWORD_ONLY}
    takes = ", ".join(
        name if p.default is p.empty else f"{name}={_show(p.default)}"
        for name, p in parameters.items()
    )

    def fail(message, position):
        reader.fail(f"{call.name}({takes}): {message}", position)

    values, positions = {}, {}
    for place, (position, name, value) in enumerate(call.arguments):
        if name is None and place < len(parameters):
            name = list(parameters)[place]
        if name is None:
            fail(f"there are too many arguments. Received: {value}", position)
        if name not in parameters:
            fail(f"there is no such argument. Received: {name}", position)
        if name in values:
            fail(f"`{name}` is given twice. Received: {value}", position)
        values[name], positions[name] = value, position
    for name, parameter in parameters.items():
        if name not in values and parameter.default is parameter.empty:
            received = len(call.arguments)
            fail(
                f"`{name}` is missing. Received: {received} arguments",
                call.position,
            )
    try:
        for name, value in values.items():
            _check_type(name, value, parameters[name].annotation)
        if "image_size" in known:
            values["image_size"] = image_size
        return factory(**values)
    except _ArgumentError as error:
        fail(str(error), positions.get(error.name, call.position))


def _show(value):
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_type(name, value, annotation):
    types = typing.get_args(annotation) or (annotation,)
    if value is None:
        _require(type(None) in types, name, "a number", value)
    else:
        _require(math.isfinite(value), name, "finite", value)
        _require(abs(value) < 2**31, name, "of less than 32 bits", value)
        is_whole = isinstance(value, int)
        _require(float in types or is_whole, name, "a whole number", value)


# Operations on images: each factory returns a function of image and seed.


def flip_lr():
    """Mirror half of the images from left to right."""
    return tf.image.stateless_random_flip_left_right


def pad_crop(pixels: int):
    """Pad by `pixels` of zeros on each side and crop back at random."""
    _require(pixels >= 0, "pixels", "0 or more", pixels)

    def shift(image, seed):
        border = [[pixels, pixels], [pixels, pixels], [0, 0]]
        return tf.image.stateless_random_crop(
            tf.pad(image, border), tf.shape(image), seed
        )

    return shift


def affine(degrees: float, shift: float, scale: float):
    """Rotate, move and zoom the image at random about its centre.

    Empty space is filled with zeros.

    Args:
        degrees: Largest rotation, either way.
        shift: Largest move along each axis, as a share of the size.
        scale: Largest zoom, as a share: 0.1 zooms by 0.9 to 1.1.
    """
    _require(degrees >= 0, "degrees", "0 or more", degrees)
    _require(shift >= 0, "shift", "0 or more", shift)
    _require(0 <= scale < 1, "scale", "in [0, 1)", scale)

    def transform(image, seed):
        draw = tf.random.stateless_uniform((4,), seed, -1.0, 1.0)
        height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
        angle = draw[0] * degrees * math.pi / 180
        zoom = 1.0 / (1.0 + draw[1] * scale)
        cos, sin = tf.cos(angle) * zoom, tf.sin(angle) * zoom
        # Maps a pixel of the result to one of the source, about the centre.
        x, y = (width - 1) / 2, (height - 1) / 2
        matrix = [
            cos,
            -sin,
            x - cos * x + sin * y + draw[2] * shift * width,
            sin,
            cos,
            y - sin * x - cos * y + draw[3] * shift * height,
            0.0,
            0.0,
        ]
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=image[None],
            transforms=tf.stack(matrix)[None],
            output_shape=tf.shape(image)[:2],
            fill_value=0.0,
            interpolation="BILINEAR",
            fill_mode="CONSTANT",
        )[0]

    return transform


def inception_crop(
    size: int | None = None, smallest: float = 0.05, *, image_size
):
    """Cut out a random part of the image, and resize it.

    The part has any shape near a square, the aspect ratio being from 3/4 to
    4/3; the image as a whole is taken where no such part is found.

    Args:
        size: Side of the result, in pixels; None for that of the model.
        smallest: The least share of the area that is kept.
        image_size: The size that None stands for.

    Reference: Szegedy et al. 2015, arXiv:1409.4842; aspect ratio and bilinear
        resizing without antialiasing as in the official ViT code.
    """
    target = _pick_size(size, image_size)
    _require(0 < smallest <= 1, "smallest", "in (0, 1]", smallest)

    def pick_window(shape, seed):
        start, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            seed,
            min_object_covered=0.0,
            area_range=(smallest, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([start[:2], extent[:2]], 0)

    return _WindowCrop(
        pick_window, lambda image: tf.image.resize(image, target)
    )


@dataclasses.dataclass(frozen=True)
class _WindowCrop:
    """Cuts a window out of an image, and resizes it."""

    pick_window: Callable
    resize: Callable

    def __call__(self, image, seed):
        window = self.pick_window(tf.shape(image), seed)
        return self.resize(cut_window(image, window))


def random_crop(size: int | None = None, *, image_size):
    """Cut out a part of the image, at a random place.

    Args:
        size: Side of the part, in pixels; None for the size of the model.
        image_size: The size that None stands for.
    """

    def pick(free, seed):
        draw = tf.random.stateless_uniform((2,), seed)
        return tf.cast(draw * tf.cast(free + 1, tf.float32), tf.int32)

    return _Crop("random_crop", _pick_size(size, image_size), pick)


def central_crop(size: int | None = None, *, image_size):
    """Cut out the middle of the image.

    Args:
        size: Side of the part, in pixels; None for the size of the model.
        image_size: The size that None stands for.
    """
    target = _pick_size(size, image_size)
    return _Crop("central_crop", target, lambda free, seed: free // 2)


@dataclasses.dataclass(frozen=True)
class _Crop:
    """Cuts `target` out of an image, from where `pick` says.

    That takes how many rows and columns are to be cut off, and the seed.
    """

    kind: str
    target: tuple[int, int]
    pick: Callable

    def check(self, image, name):
        height, width = self.target
        check = tf.debugging.Assert(
            tf.reduce_all(tf.shape(image)[:2] >= self.target),
            [
                f"{self.kind} takes images of {height} x {width} pixels or "
                "more. Received: one of shape",
                tf.shape(image),
                name,
            ],
        )
        with tf.control_dependencies([check] if check is not None else []):
            return tf.identity(image)

    def __call__(self, image, seed):
        free = tf.shape(image)[:2] - self.target
        start = tf.concat([self.pick(free, seed), [0]], 0)
        return tf.slice(image, start, (*self.target, image.shape[-1]))


def resize(size: int | None = None, *, image_size):
    """Resize the image, whatever its aspect ratio; bilinear, no antialias.

    Args:
        size: Side of the result, in pixels; None for that of the model.
        image_size: The size that None stands for.
    """
    target = _pick_size(size, image_size)
    return lambda image, seed: tf.image.resize(image, target)


def resize_small(size: int):
    """Resize the image so that its short side is `size`; antialiased.

    Each pixel is the mean of the area it covers, as in the official code.
    """
    _require(size > 0, "size", "positive", size)

    def shrink(image, seed):
        sides = tf.cast(tf.shape(image)[:2], tf.float32)
        target = tf.round(sides * (size / tf.reduce_min(sides)))
        target = tf.cast(target, tf.int32)
        return tf.image.resize(image, target, method="area")

    return shrink


def randaugment(num_ops: int, magnitude: float):
    """Change colours and shape; see `trainers.augment.randaugment`."""
    _require(num_ops > 0, "num_ops", "positive", num_ops)
    _require(magnitude >= 0, "magnitude", "0 or more", magnitude)
    return lambda image, seed: apply_randaugment(
        image, seed, num_ops, magnitude
    )


def random_erasing(
    probability: float = 0.25,
    smallest: float = 0.02,
    largest: float = 1 / 3,
    aspect: float = 0.3,
    fill: float | None = None,
):
    """Overwrite a random rectangle of some of the images.

    Args:
        probability: Share of the images that are changed.
        smallest: Least area of the rectangle, as a share of the image.
        largest: Its largest area.
        aspect: Least ratio of its sides, the largest being 1 / aspect; all
            scales in between are equally likely.
        fill: Level to write, from 0 to 255; None for levels drawn anew for
            each pixel and channel.

    Reference: Zhong et al. 2017, arXiv:1708.04896, algorithm 1.
    Differs: Ten rectangles are drawn, not as many as it takes, and the first
        that fits into the image is used; the aspect ratio is drawn on a
        logarithmic scale, not a linear one.
    """
    _require(0 <= probability <= 1, "probability", "in [0, 1]", probability)
    _require(0 < smallest <= 1, "smallest", "in (0, 1]", smallest)
    _require(smallest <= largest <= 1, "largest", "in [smallest, 1]", largest)
    _require(0 < aspect <= 1, "aspect", "in (0, 1]", aspect)
    if fill is not None:
        _require(0 <= fill <= 255, "fill", "in [0, 255]", fill)
        fill = float(fill)

    def erase(image, seed):
        seeds = tf.unstack(tf.random.split(seed, 4))
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        area = tf.reduce_prod(size) * tf.random.stateless_uniform(
            (10,), seeds[0], smallest, largest
        )
        ratio = tf.exp(
            math.log(aspect)
            * tf.random.stateless_uniform((10,), seeds[1], -1.0, 1.0)
        )
        sides = tf.round(
            tf.stack([tf.sqrt(area * ratio), tf.sqrt(area / ratio)], -1)
        )
        fits = tf.reduce_all(sides <= size, -1)
        sides = sides[tf.argmax(fits)]
        draw = tf.random.stateless_uniform((3,), seeds[2])
        start = tf.floor(draw[1:] * (size - sides + 1))
        is_drawn = (draw[0] < probability) & tf.reduce_any(fits)

        def overwrite():
            levels = fill
            if fill is None:
                levels = tf.random.stateless_uniform(
                    tf.shape(image), seeds[3], 0.0, 255.0
                )
            box = _box(image, start, start + sides)[..., None]
            return tf.where(box, levels, image)

        # The levels of the noise take long to draw.
        return tf.cond(is_drawn, overwrite, lambda: image)

    return erase


def value_range(low: float, high: float):
    """Say what 0 and 255 become for the model; -1 and 1 if it is not said."""
    _require(low < high, "high", "more than `low`", high)
    return float(low), float(high)


def _pick_size(size, image_size):
    """Return (height, width)."""
    _require(size is None or size > 0, "size", "positive", size)
    return image_size if size is None else (size, size)


def _box(images, start, end):
    """Return whether each pixel (H, W) is inside of a rectangle.

    Args:
        images: (..., H, W, C).
        start: (2,), floats: the first row and column.
        end: (2,), floats: the row and column behind the last.
    """
    height, width = tf.unstack(tf.shape(images)[-3:-1])
    rows = tf.range(tf.cast(height, tf.float32))
    columns = tf.range(tf.cast(width, tf.float32))
    rows = (start[0] <= rows) & (rows < end[0])
    columns = (start[1] <= columns) & (columns < end[1])
    return rows[:, None] & columns


# Operations on batches: each factory returns a function of the images, the
# images to mix them with, and the seed. It returns the mixed images and how
# much of the labels is that of the others.


def mixup(alpha: float = 0.2):
    """Average images with others.

    The weight is the larger part of a draw from Beta(alpha, alpha), one for
    the batch.

    Args:
        alpha: The larger, the more of the other image.

    Reference: Zhang et al. 2018, arXiv:1710.09412; the larger part as in the
        official code of Beyer et al. 2022, arXiv:2205.01580.
    Differs: There, an image is mixed with the one before it in the batch of
        its device, the first with the last, and each device draws a weight of
        its own. Here images are mixed in pairs, the first with the second,
        by one weight: a batch that is cut between pairs, however often, gives
        what it gives as a whole.
    """
    _require(alpha > 0, "alpha", "positive", alpha)

    def mix(images, others, seed):
        share = _draw_beta(alpha, seed)
        share = tf.minimum(share, 1 - share)
        return images + tf.cast(share, images.dtype) * (others - images), share

    return mix


def cutmix(alpha: float = 1.0):
    """Replace a rectangle of images by that of others.

    Its area is a draw from Beta(alpha, alpha), its shape that of the image
    and its centre anywhere, one rectangle for the batch. The labels are mixed
    by the area that is inside of the image.

    Args:
        alpha: The larger, the closer to half of the area.

    Reference: Yun et al. 2019, arXiv:1905.04899, section 3.1.
    Differs: Images are mixed in pairs, as by mixup.
    """
    _require(alpha > 0, "alpha", "positive", alpha)

    def mix(images, others, seed):
        of_share, of_place = tf.unstack(tf.random.split(seed, 2))
        size = tf.cast(tf.shape(images)[1:3], tf.float32)
        centre = size * tf.random.stateless_uniform((2,), of_place)
        half = size * tf.sqrt(_draw_beta(alpha, of_share)) / 2
        start = tf.round(tf.maximum(centre - half, 0.0))
        end = tf.round(tf.minimum(centre + half, size))
        box = _box(images, start, end)[..., None]
        share = tf.reduce_prod((end - start) / size)
        return tf.where(box, others, images), share

    return mix


def _draw_beta(alpha, seed):
    """Return a draw from Beta(alpha, alpha).

    The cosine gives one of Beta(alpha + 1, alpha + 1), the other two turn it
    into one of alpha. There is no rejection, so that XLA can compile it, and
    it is the logarithm of the odds, which a small alpha does not spoil.

    Reference: Devroye 1986, Non-Uniform Random Variate Generation, IX.3.2
        (gamma variates of alpha from alpha + 1) and IX.4.2 (Ulrich's method).
    """
    draw = tf.random.stateless_uniform((4,), seed, 1e-30, 1.0)
    radius = tf.sqrt(1 - draw[0] ** (2 / (2 * alpha + 1)))
    odds = 2 * tf.atanh(radius * tf.cos(2 * math.pi * draw[1]))
    return tf.sigmoid(odds + tf.math.log(draw[2] / draw[3]) / alpha)


def _mix(operations, images, labels, weights, seed):
    """Mix images in pairs by one of the operations."""
    if not operations:
        return images, labels
    # 0 and 1 are a pair, 2 and 3, ...; who has no partner is his own.
    own = tf.range(tf.shape(weights)[0])
    other = tf.bitwise.bitwise_xor(own, 1)
    other = tf.where(other < tf.size(own), other, own)
    is_there = weights > 0
    other = tf.where(is_there & tf.gather(is_there, other), other, own)
    others = tf.gather(images, other)

    def branch(place, operation):
        return lambda: operation(images, others, tf.random.fold_in(seed, place))

    choice = tf.random.stateless_uniform(
        (), tf.random.fold_in(seed, -1), 0, len(operations), tf.int32
    )
    branches = [branch(*row) for row in operations]
    images, share = tf.switch_case(choice, branches)
    share = tf.cast(share, labels.dtype)
    return images, labels + share * (tf.gather(labels, other) - labels)


OPS = {
    "affine": affine,
    "central_crop": central_crop,
    "flip_lr": flip_lr,
    "inception_crop": inception_crop,
    "pad_crop": pad_crop,
    "randaugment": randaugment,
    "random_crop": random_crop,
    "random_erasing": random_erasing,
    "resize": resize,
    "resize_small": resize_small,
    "value_range": value_range,
}

BATCH_OPS = {"cutmix": cutmix, "mixup": mixup}

# num_ops and magnitude of randaugment, alpha of mixup: Steiner et al. 2022,
# arXiv:2106.10270. Names are those of the paper; the files of the official
# checkpoints say light0 for its light1, and light1 for its light2.
AUGREG_LEVELS = {
    "none": (0, 0, 0.0),
    "light1": (2, 0, 0.0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}
