"""The worker for PyTorch, eager: timm, a matrix product.

Runs in an environment of its own, without TensorFlow, Keras and keras_vit.
"""

from collections.abc import Callable

import torch

from benchmarks.serve import serve

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "mixed_bfloat16": torch.float32,
}


def prepare(case: dict) -> tuple[dict[str, Callable], dict]:
    """Return what `case` asks for, and the versions of what runs it."""
    torch.set_num_threads(case["threads"])
    torch.manual_seed(0)
    versions = {"torch": torch.__version__}
    timm = import_timm()
    versions["timm"] = timm.__version__
    model = timm_model(timm, case)
    step = {"forward": forward_step, "train": train_step}[case["task"]]
    return {"step": step(model, case), "product": product(case)}, versions


def import_timm():
    """Return timm, also where torchvision lacks its compiled operators.

    timm imports torchvision, and torchvision describes two operators that it
    expects to be compiled. Where PyTorch is built for the CPU and torchvision
    is not, they are missing; no ViT uses them, so it is enough to name them.
    """
    try:
        import timm
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms() -> ()")
        library.define("qnms() -> ()")
        import timm
    return timm


def timm_model(timm, case: dict) -> torch.nn.Module:
    """Return timm's model of `case["config"]`."""
    config = case["config"]
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=tuple(config["image_size"]),
        patch_size=config["patch_size"],
        in_chans=config["channels"],
        num_classes=config["num_classes"],
        embed_dim=config["width"],
        depth=config["depth"],
        num_heads=config["num_heads"],
        mlp_ratio=config["mlp_dim"] / config["width"],
    )
    return model.to(DTYPES[case["precision"]])


def forward_step(model: torch.nn.Module, case: dict) -> Callable[[], object]:
    """Return the inference of a batch."""
    images, _ = batch(case)
    model.eval()

    @torch.inference_mode()
    def forward():
        with autocast(case):
            return model(images).float().numpy()

    return forward


def train_step(model: torch.nn.Module, case: dict) -> Callable[[], object]:
    """Return a training step with cross-entropy and Adam.

    AdamW without decay is Adam, the same work as in the Keras worker.
    """
    images, labels = batch(case)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)

    def train():
        with autocast(case):
            logits = model(images)
            loss = torch.nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return train


def autocast(case: dict):
    """Return the context of a mixed precision, or one that does nothing."""
    mixed = case["precision"] == "mixed_bfloat16"
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed)


def batch(case: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images in [-1, 1], channels first, and random labels."""
    config, size = case["config"], case["batch_size"]
    images = torch.rand(size, config["channels"], *config["image_size"])
    images = (2 * images - 1).to(DTYPES[case["precision"]])
    labels = torch.randint(config["num_classes"], (size,))
    return images, labels


def product(case: dict) -> Callable[[], object]:
    """Return one product of matrices of `case["matrix_shape"]`."""
    rows, inner, columns = case["matrix_shape"]
    dtype = DTYPES[case["matrix_dtype"]]
    a = (2 * torch.rand(rows, inner) - 1).to(dtype)
    b = (2 * torch.rand(inner, columns) - 1).to(dtype)
    return lambda: torch.matmul(a, b)


if __name__ == "__main__":
    serve(prepare)
