"""Accuracy over the cost of pre-training, of ResNets, ViTs and hybrids."""

import matplotlib.pyplot as plt
import style

# Dosovitskiy et al. 2021, table 6: model, epochs on JFT-300M, accuracy after
# fine-tuning on ImageNet, CIFAR-10, CIFAR-100, Pets and Flowers, exaFLOPs.
ROWS = [
    ("ViT-B/32", 7, 80.73, 98.61, 90.49, 93.40, 99.27, 55),
    ("ViT-B/16", 7, 84.15, 99.00, 91.87, 95.80, 99.56, 224),
    ("ViT-L/32", 7, 84.37, 99.19, 92.52, 95.83, 99.45, 196),
    ("ViT-L/16", 7, 86.30, 99.38, 93.46, 96.81, 99.66, 783),
    ("ViT-L/16", 14, 87.12, 99.38, 94.04, 97.11, 99.56, 1567),
    ("ViT-H/14", 14, 88.08, 99.50, 94.71, 97.11, 99.71, 4262),
    ("ResNet50x1", 7, 77.54, 97.67, 86.07, 91.11, 94.26, 50),
    ("ResNet50x2", 7, 82.12, 98.29, 89.20, 93.43, 97.02, 199),
    ("ResNet101x1", 7, 80.67, 98.48, 89.17, 94.08, 95.95, 96),
    ("ResNet152x1", 7, 81.88, 98.82, 90.22, 94.17, 96.94, 141),
    ("ResNet152x2", 7, 84.97, 99.06, 92.05, 95.37, 98.62, 563),
    ("ResNet152x2", 14, 85.56, 99.24, 91.92, 95.75, 98.75, 1126),
    ("ResNet200x3", 14, 87.22, 99.34, 93.53, 96.32, 99.04, 3306),
    ("R50+ViT-B/32", 7, 84.90, 99.01, 92.24, 95.75, 99.46, 106),
    ("R50+ViT-B/16", 7, 85.58, 99.14, 92.63, 96.65, 99.40, 274),
    ("R50+ViT-L/32", 7, 85.68, 99.24, 92.93, 96.97, 99.43, 246),
    ("R50+ViT-L/16", 7, 86.60, 99.18, 93.64, 97.03, 99.40, 859),
    ("R50+ViT-L/16", 14, 87.12, 99.31, 93.89, 97.36, 99.11, 1668),
]
# Table 2: TPUv3-core-days and mean accuracy on ImageNet. BiT-L: table 1 of
# arXiv:1912.11370.
CORE_DAYS = {
    "H/14, JFT": (2500, 88.55),
    "L/16, JFT": (680, 87.76),
    "L/16, ImageNet-21k": (230, 85.30),
    "BiT-L (ResNet152x4), JFT": (9900, 87.54),
}
KINDS = {
    "ResNet (BiT)": ("ResNet", style.ORANGE, "s"),
    "ViT": ("ViT", style.BLUE, "o"),
    "hybrid": ("R50+", style.GREEN, "^"),
}


def mean_accuracy(row) -> float:
    """Return the mean over the five data sets."""
    return sum(row[2:7]) / 5


def draw_compute():
    """Draw the mean accuracy and that on ImageNet over the cost."""
    figure, all_axes = plt.subplots(1, 2, figsize=(style.WIDTH, 3.0))
    pictures = {
        "mean of five data sets": mean_accuracy,
        "ImageNet": lambda row: row[2],
    }
    for axes, (title, value) in zip(all_axes, pictures.items()):
        for label, (start, color, marker) in KINDS.items():
            rows = [row for row in ROWS if row[0].startswith(start)]
            axes.plot(
                [row[-1] for row in rows],
                [value(row) for row in rows],
                marker,
                color=color,
                label=label,
            )
        axes.set_xscale("log")
        axes.set_xticks([100, 1000], ["100", "1,000"])
        axes.grid(axis="y")
        axes.set(title=title, xlabel="exaFLOPs", ylabel="accuracy in %")
    all_axes[0].legend(loc="lower right")
    return figure


def draw_core_days():
    """Draw the accuracy of the best models over the time of their training."""
    figure, axes = plt.subplots(figsize=(style.WIDTH, 2.6))
    for name, point in CORE_DAYS.items():
        is_bit = name.startswith("BiT")
        axes.plot(
            *point,
            "s" if is_bit else "o",
            color=style.ORANGE if is_bit else style.BLUE,
        )
        axes.annotate(
            name,
            point,
            (-8, -3) if is_bit else (8, -3),
            textcoords="offset points",
            size=8,
            ha="right" if is_bit else "left",
        )
    axes.set_xscale("log")
    axes.set_xticks([100, 1000, 10_000], ["100", "1,000", "10,000"])
    axes.set(
        xlabel="TPUv3-core-days of pre-training",
        ylabel="ImageNet top-1, in %",
        xlim=(100, 20_000),
        ylim=(84.5, 89.5),
    )
    axes.grid(True)
    return figure


FIGURES = {
    "compute_core_days.svg": draw_core_days,
    "compute.svg": draw_compute,
}

if __name__ == "__main__":
    style.write(FIGURES)
