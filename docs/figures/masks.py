"""Which tokens may attend to which: in translation, and in images."""

import matplotlib.pyplot as plt
import numpy as np
import style
from keras import ops
from unlabelled import draw_objectives

from keras_vit.layers.attention import attend_by_products

SOURCE = "the cat sleeps today".split()
TARGET = "heute schläft die Katze".split()
ORDER = (3, 2, 0, 1)  # The source word that each target word translates.
# What an English word offers to the translation: animal, deed, time. By hand.
VALUES = {"cat": (3, 0, 0), "sleeps": (0, 2, 0), "today": (0, 0, 1)}
SCALE = 5  # Of the queries: the larger, the more one word gets.
SIDE = 8  # Patches in a row of the figure of the patterns.


def draw_translation():
    """Draw the three attentions of an encoder and a decoder."""
    source = np.eye(4, dtype="float32")[None]  # (1, T, D): a meaning each.
    target = source[:, ORDER]
    causal = np.tril(np.ones((1, 4, 4), bool))
    cases = {
        "encoder: all words": (source, source, SOURCE, SOURCE, None),
        "decoder: no later word": (target, target, TARGET, TARGET, causal),
        "decoder reads the encoder": (
            SCALE * target,
            source,
            TARGET,
            SOURCE,
            None,
        ),
    }
    figure, all_axes = plt.subplots(1, 3, figsize=(style.WIDTH, 2.7))
    for axes, (title, case) in zip(all_axes, cases.items()):
        query, key, asking, asked, mask = case
        _, scores = attend_by_products(query, key, key, num_heads=1, mask=mask)
        scores = ops.convert_to_numpy(scores)[0, 0]
        picture = axes.imshow(scores, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(4), asked, rotation=90)
        axes.set_yticks(range(4), asking)
        axes.set_title(title)
        for (row, column), value in np.ndenumerate(scores):
            axes.text(
                column,
                row,
                f"{value:.2f}".lstrip("0") if value else "0",
                ha="center",
                va="center",
                size=8,
                color="white" if value > 0.6 else "black",
            )
    all_axes[0].set_ylabel("asks (query)")
    figure.supxlabel("is asked (key)", size=9)
    figure.colorbar(picture, ax=all_axes, label="weight")
    return figure


def draw_walk():
    """Draw how the decoder gets the value of the word that it translates."""
    key = np.eye(4, dtype="float32")[None]  # (1, T, D): a meaning each.
    query = SCALE * key[:, ORDER]  # (1, S, D)
    value = np.array([[VALUES.get(w, (0, 0, 0)) for w in SOURCE]], "float32")
    value = np.pad(value, ((0, 0), (0, 0), (0, 1)))  # As wide as the keys.
    answer, scores = attend_by_products(query, key, value, num_heads=1)
    tables = {
        "queries": (query, TARGET, SOURCE),
        "keys": (key, SOURCE, SOURCE),
        "weights": (scores[0], TARGET, SOURCE),
        "values": (value[..., :3], SOURCE, ["animal", "deed", "time"]),
        "answer": (answer[..., :3], TARGET, ["animal", "deed", "time"]),
    }
    figure, all_axes = plt.subplots(1, 5, figsize=(style.WIDTH, 2.3))
    for axes, (title, (table, rows, columns)) in zip(all_axes, tables.items()):
        table = ops.convert_to_numpy(table)[0]
        is_weight = title == "weights"
        axes.imshow(
            table,
            cmap="Blues" if is_weight else "Purples",
            vmin=0,
            vmax=1 if is_weight else 6,
            aspect="auto",
        )
        axes.set_xticks(range(len(columns)), columns, rotation=90, size=8)
        axes.set_yticks(range(4), rows, size=8)
        axes.set_title(title)
        for (row, column), number in np.ndenumerate(table):
            is_whole = number == round(number)
            text = f"{number:.0f}" if is_whole else f"{number:.2f}".lstrip("0")
            is_dark = number > (0.6 if is_weight else 4)
            color = "white" if is_dark else "black"
            axes.text(
                column, row, text, ha="center", va="center", size=7, color=color
            )
    return figure


def draw_paths():
    """Draw recurrent steps beside attention, and how many steps they need."""
    figure, all_axes = plt.subplots(1, 3, figsize=(style.WIDTH, 2.5))
    draw_steps(*all_axes[:2])
    draw_numbers_of_steps(all_axes[2])
    return figure


def draw_steps(left, middle):
    """Draw recurrent steps on the left axes, and attention on the others."""
    for axes, title in (
        (left, "recurrent network"),
        (middle, "self-attention"),
    ):
        axes.set_title(title)
        axes.set(xlim=(0.5, 6.5), ylim=(-0.5, 1.6))
        style.hide_frame(axes)
        for x in range(1, 7):
            for y in (0, 1):
                axes.plot(x, y, "o", color="white", mec=style.GREY, ms=14)
            axes.text(x, 0, str(x), ha="center", va="center", size=8)
        axes.text(0.5, -0.45, "inputs", size=8)
        axes.text(0.5, 1.4, "states" if axes is left else "results", size=8)
    path = {"arrowstyle": "->", "color": style.ORANGE, "lw": 1.6}
    other = {"arrowstyle": "->", "color": style.GREY, "lw": 0.6}
    gap = {"shrinkA": 8, "shrinkB": 8}
    for x in range(1, 7):
        look = path if x == 1 else other
        left.annotate("", (x, 1), (x, 0), arrowprops=look | gap)
        if x < 6:
            left.annotate("", (x + 1, 1), (x, 1), arrowprops=path | gap)
        look = path if x == 1 else other
        middle.annotate("", (6, 1), (x, 0), arrowprops=look | gap)


def draw_numbers_of_steps(right):
    """Draw the steps from the first token to the last, over all tokens."""
    lengths = np.array([2, 4, 9, 16, 36, 64, 100, 144, 196])
    right.loglog(
        lengths,
        [count_steps(_chain(length)) for length in lengths],
        "s--",
        color=style.ORANGE,
        ms=3,
        label="recurrent",
    )
    squares = [
        length for length in lengths if round(length**0.5) ** 2 == length
    ]
    right.loglog(
        squares,
        [count_steps(_window(round(length**0.5))) for length in squares],
        "^-.",
        color=style.GREEN,
        ms=3,
        label="3 x 3 window",
    )
    right.loglog(
        lengths,
        [count_steps(np.ones((length, length), bool)) for length in lengths],
        "o-",
        color=style.BLUE,
        ms=3,
        label="self-attention",
    )
    right.set(xlabel="tokens", title="steps from first to last")
    right.set_xticks([2, 10, 100], ["2", "10", "100"])
    right.set_yticks([1, 10, 100], ["1", "10", "100"])
    right.grid(True)
    right.legend(fontsize=7.5)


def count_steps(mask) -> int:
    """Return the steps after which the last token depends on the first.

    Args:
        mask: (T, T), which tokens a token reads in one step.
    """
    known, steps = mask[-1], 1
    while not known[0]:
        known, steps = known @ mask, steps + 1
    return steps


def _chain(length):
    """Return that a state reads itself and the one before."""
    return np.tri(length, dtype=bool) & ~np.tri(length, k=-2, dtype=bool)


def _window(side):
    """Return that a patch of a square grid reads the patches around it."""
    rows, columns = np.divmod(np.arange(side**2), side)
    down = np.abs(rows[:, None] - rows)
    across = np.abs(columns[:, None] - columns)
    return (down <= 1) & (across <= 1)


def patterns() -> dict[str, np.ndarray]:
    """Return which patches attend to which, (N, N), by the name of a form."""
    rows, columns = np.divmod(np.arange(SIDE**2), SIDE)
    blocks = (rows // 4) * 2 + columns // 4
    return {
        "all": np.ones((SIDE**2, SIDE**2), bool),
        "local, 3 x 3": _window(SIDE),
        "axial": (rows[:, None] == rows) | (columns[:, None] == columns),
        "blocks": blocks[:, None] == blocks,
    }


def draw_patterns():
    """Draw the patches that one patch reads, and all pairs, for each form."""
    forms = patterns()
    figure, all_axes = plt.subplots(
        2, len(forms), figsize=(style.WIDTH, 3.9), height_ratios=(1, 1.15)
    )
    token = np.zeros((1, SIDE**2, 8), "float32")
    query = 3 * SIDE + 3
    for (above, below), (name, mask) in zip(all_axes.T, forms.items()):
        _, scores = attend_by_products(
            token, token, token, num_heads=1, mask=mask[None]
        )
        scores = ops.convert_to_numpy(scores)[0, 0]  # (N, N)
        reads = scores > 0
        above.imshow(
            reads[query].reshape(SIDE, SIDE), cmap="Blues", vmin=0, vmax=1.6
        )
        above.plot(3, 3, "s", color=style.ORANGE, markersize=7)
        above.set_title(name)
        below.imshow(reads, cmap="Blues", vmin=0, vmax=1.6)
        below.set_xlabel(f"{reads.sum():,} pairs")
    all_axes[0, 0].set_ylabel("one query")
    all_axes[1, 0].set_ylabel("all queries")
    for axes in all_axes.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


FIGURES = {
    "masks_translation.svg": draw_translation,
    "masks_walk.svg": draw_walk,
    "masks_objectives.svg": draw_objectives,
    "masks_paths.svg": draw_paths,
    "masks_patterns.svg": draw_patterns,
}

if __name__ == "__main__":
    style.write(FIGURES)
