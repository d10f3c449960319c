"""Published accuracies over the data that a model was pre-trained on."""

import matplotlib.pyplot as plt
import numpy as np
import style

# ImageNet top-1 after fine-tuning at 384 pixels, pre-trained on ImageNet,
# ImageNet-21k, JFT-300M: arXiv:2010.11929, table 5. None: not in the table.
PRETRAINING = {
    "B/32": (73.38, 81.28, 80.73),
    "B/16": (77.91, 83.97, 84.15),
    "L/32": (71.16, 80.99, 84.37),
    "L/16": (76.53, 85.15, 87.12),
    "H/14": (None, 85.13, 88.04),
}
# BiT on the same data: the largest model (arXiv:1912.11370, tables 1 and 2),
# and the smallest, as far as a source gives it (README of big_transfer).
LARGEST_BIT = (81.30, 85.39, 87.54)
SMALLEST_BIT = (None, 80.68, None)
# S/16 on ImageNet alone after 90, 150 and 300 epochs: arXiv:2205.01580.
EPOCHS = (90, 150, 300)
RECIPES = {
    "better baseline": (76.5, 78.5, 80.0),
    "better baseline without RandAugment and mixup": (73.6, 73.7, 73.7),
    "original with RandAugment and mixup": (71.6, 74.8, 76.1),
    "original": (66.8, 67.2, 67.1),
}
COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.PINK, style.YELLOW)


def draw_data():
    """Draw what more data gives, and what augmentation gives."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(style.WIDTH, 3.5), sharey=False
    )
    draw_pretraining(left)
    draw_augmentation(right)
    for axes in (left, right):
        axes.grid(True)
    return figure


def draw_pretraining(left):
    """Draw the accuracies of PRETRAINING, beside those of BiT."""
    names = ("ImageNet", "ImageNet-21k", "JFT-300M")
    for (model, values), color, marker in zip(
        PRETRAINING.items(), COLORS, "osv^D"
    ):
        values = np.array(values, float)
        line = "--" if "/32" in model else "-"
        left.plot(
            range(3), values, marker + line, color=color, label=model, ms=4
        )
    left.plot(range(3), LARGEST_BIT, color=style.GREY, label="R152x4 (BiT)")
    left.plot(1, SMALLEST_BIT[1], "_", color=style.GREY, ms=12, mew=2)
    left.plot([1, 1], [SMALLEST_BIT[1], LARGEST_BIT[1]], ":", color=style.GREY)
    left.annotate(
        "R50x1 (BiT)",
        (1, SMALLEST_BIT[1]),
        (8, -13),
        textcoords="offset points",
        size=7.5,
    )
    left.set_xticks(range(3), names)
    left.set_xlim(-0.2, 2.25)
    left.set(
        xlabel="pre-trained on",
        ylabel="ImageNet top-1, in %",
        title="more data (fine-tuned at 384 pixels)",
    )
    left.legend(loc="lower right")


def draw_augmentation(right):
    """Draw the accuracies of RECIPES."""
    for (recipe, values), color, marker in zip(RECIPES.items(), COLORS, "osv^"):
        right.plot(
            EPOCHS, values, marker + "-", color=color, label=recipe, ms=4
        )
    right.set_xticks(EPOCHS)
    right.set(
        xlabel="epochs on ImageNet",
        title="more augmentation (S/16, 224 pixels)",
        ylim=(65, 90),
    )
    right.legend(loc="upper left", fontsize=7.5)


FIGURES = {"data.svg": draw_data}

if __name__ == "__main__":
    style.write(FIGURES)
