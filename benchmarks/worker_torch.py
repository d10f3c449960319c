"""The worker for PyTorch: ours on this backend, timm, a matrix product.

For timm it needs neither TensorFlow nor Keras. It runs on the GPU if PyTorch
finds one.
"""

import functools
from collections.abc import Callable

import torch

from benchmarks.pipe import answer_requests, repeat

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "mixed_bfloat16": torch.float32,
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_functions(case: dict) -> tuple[dict[str, Callable], dict]:
    """Return the functions for `case`, and the versions of the packages."""
    torch.set_num_threads(case["threads"])
    torch.manual_seed(0)
    versions = {"torch": torch.__version__}
    model = MODEL_BUILDERS[case["package"]](case, versions)
    step = {"forward": forward_step, "train": train_step}[case["task"]]
    return {"step": step(model, case), "product": product(case)}, versions


def our_model(case: dict, versions: dict) -> torch.nn.Module:
    """Return keras_vit's model of `case["config"]`, a module of PyTorch."""
    import keras

    from benchmarks.harness import build_ours

    versions["keras"] = keras.__version__
    return build_ours(case)


def timm_model(case: dict, versions: dict) -> torch.nn.Module:
    """Return timm's model of `case["config"]`, channels first."""
    timm = import_timm()
    versions["timm"] = timm.__version__
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
    return model.to(DEVICE, DTYPES[case["precision"]])


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


def forward_step(model: torch.nn.Module, case: dict) -> Callable[[], object]:
    """Return the inference of a batch."""
    images, _ = batch(case)
    model.eval()
    run = torch.compile(model) if case.get("compile") else model

    @torch.inference_mode()
    def forward():
        with autocast(case):
            return run(images)

    return repeat(forward, lambda y: y.float().cpu().numpy(), case["steps"])


def train_step(model: torch.nn.Module, case: dict) -> Callable[[], object]:
    """Return a training step with cross-entropy and Adam.

    AdamW without decay is Adam, the same work as in the Keras worker.
    """
    images, labels = batch(case)
    model.train()
    run = torch.compile(model) if case.get("compile") else model
    # Keras has a mode of its own.
    options = {"training": True} if is_ours(case) else {}
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, weight_decay=0, fused=True
    )

    def train():
        with autocast(case):
            logits = run(images, **options)
            loss = torch.nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return repeat(train, torch.Tensor.item, case["steps"])


def autocast(case: dict):
    """Return the context of timm's mixed precision; ours has a policy."""
    mixed = case["precision"] == "mixed_bfloat16" and not is_ours(case)
    return torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=mixed)


def is_ours(case: dict) -> bool:
    """Return whether the model of `case` is one of Keras."""
    return case.get("package") == "ours"


def batch(case: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images in [-1, 1] and random labels.

    Shapes: returns: (B, H, W, C) for ours, (B, C, H, W) for timm; and (B,).
    """
    config, size = case["config"], case["batch_size"]
    shape = [config["channels"], *config["image_size"]]
    shape = [*shape[1:], shape[0]] if is_ours(case) else shape
    images = (2 * torch.rand(size, *shape) - 1).to(DTYPES[case["precision"]])
    labels = torch.randint(config["num_classes"], (size,))
    return images.to(DEVICE), labels.to(DEVICE)


def product(case: dict) -> Callable[[], object]:
    """Return one product of matrices of `case["matrix_shape"]`.

    It is computed as in the model.
    """
    rows, inner, columns = case["matrix_shape"]
    dtype = DTYPES[case["matrix_dtype"]]
    a = (2 * torch.rand(rows, inner) - 1).to(DEVICE, dtype)
    b = (2 * torch.rand(inner, columns) - 1).to(DEVICE, dtype)
    multiply = torch.matmul
    if is_ours(case):
        from keras_vit.layers.kernels_torch import find_onednn_product

        found = find_onednn_product(a, b)
        multiply = functools.partial(found, None) if found else multiply
    # One number is fetched, which waits for the whole product.
    return lambda: multiply(a, b)[0, 0].item()


def find_gpu() -> tuple[str, Callable[[], int]] | None:
    """Return the name of the GPU, and a function that returns peak bytes."""
    if DEVICE == "cpu":
        return None
    return torch.cuda.get_device_name(), torch.cuda.max_memory_allocated


MODEL_BUILDERS = {"ours": our_model, "timm": timm_model}

if __name__ == "__main__":
    answer_requests(make_functions, find_gpu)
