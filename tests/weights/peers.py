"""The worker for timm and Hugging Face transformers, without keras_vit.

    python peers.py

reads the paths of files REQUESTS.json, a line each. It does the requests of a
file one after the other, writes a list of what went wrong with each to
REQUESTS.errors.json, and then an empty line. A request is a task, a key of
TASKS, and its arguments. Images and tokens lie as keras_vit has them,
(B, H, W, C) and (B, T, D).
"""

import contextlib
import functools
import importlib
import json
import math
import os
import pathlib
import sys
import traceback

import numpy as np

# torch, timm and transformers are imported where they are used: pytest reads
# this file as well, with the Python of keras_vit, in search of doctests.


def import_peer(name):
    """Return timm or transformers, also where torchvision is not compiled.

    Both import torchvision, and torchvision describes two operators that it
    expects to be compiled. No ViT uses them, so where they are missing it is
    enough to name them.
    """
    import torch

    with contextlib.suppress(ImportError):
        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            library = torch.library.Library("torchvision", "DEF")
            library.define("nms() -> ()")
            library.define("qnms() -> ()")
            import torchvision  # noqa: F401
    return importlib.import_module(name)


# ------------------------------------------------------------ random models


def fill(model, seed):
    """Fill every parameter with numbers that differ, of a size that lives.

    Kernels have about the scale that keeps what goes through them; logits
    are then of size one to three, and the softmaxes of attention uneven.
    """
    import torch

    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = rng.standard_normal(parameter.shape, "float32")
            if name.endswith("weight") and parameter.ndim > 1:
                value /= math.sqrt(math.prod(parameter.shape[1:]))
            elif name.endswith("weight"):
                value = 1 + 0.1 * value
            elif name.endswith("bias"):
                value *= 0.1
            else:
                value *= 0.5  # Tokens, positions, probes, scales.
            parameter.copy_(torch.from_numpy(np.asarray(value, "float32")))
    return model.eval()


def draw_images(shape, seed):
    """Return random images in [-1, 1]."""
    draws = np.random.default_rng([seed, 1]).random(shape, "float32")
    return 2 * draws - 1


def channels_first(images):
    import torch

    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def timm_model(timm, arguments, name=None):
    """Return timm's model called `name`, else its plain or distilled ViT."""
    classes = {
        None: timm.models.vision_transformer.VisionTransformer,
        "deit": timm.models.deit.VisionTransformerDistilled,
    }
    if name in classes:
        return classes[name](**arguments)
    return timm.create_model(name, **arguments)


def run_timm(model, images, details=False):
    """Return the answer of `model` and, with `details`, of its blocks."""
    import torch

    found = {}
    hooks = [
        block.register_forward_hook(
            lambda _, inputs, output, index=index: found.update(
                {f"hidden/{index}": output.numpy()}
            )
        )
        for index, block in enumerate(model.blocks if details else ())
    ]
    with torch.inference_mode():
        found["logits"] = model(channels_first(images)).numpy()
    for hook in hooks:
        hook.remove()
    return found


def build_timm(
    folder,
    arguments,
    seed,
    images=None,
    name=None,
    dtype="float32",
    hub=None,
    details=False,
    resized=(),
):
    """Write a random model of timm and, of `images`, its answers.

    With `hub`, arguments that a configuration holds, what timm uploads in place
    of the file. `resized` holds (arguments, shape of images) of models of other
    sizes that load the same weights.
    """
    timm = import_peer("timm")
    import torch
    from safetensors.torch import save_file

    model = fill(timm_model(timm, arguments, name), seed)
    model = model.to(getattr(torch, dtype))
    weights = {key: x.clone() for key, x in model.state_dict().items()}
    model = model.float()
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    if hub is None:
        save_file(weights, folder / "weights.safetensors")
    else:
        save_for_hf = timm.models.save_for_hf
        save_for_hf(
            model, folder, model_args=hub or None, safe_serialization=True
        )
    if images is None:
        return
    x = draw_images(images, seed)
    expected = {"x": x, **run_timm(model, x, details)}
    for index, (changes, shape) in enumerate(resized):
        other = timm_model(timm, {**arguments, **changes}, name).eval()
        read = timm.models.vision_transformer.checkpoint_filter_fn
        other.load_state_dict(read(dict(weights), other), strict=True)
        x = draw_images(shape, seed + 1 + index)
        answers = run_timm(other, x, details=True)
        expected[f"resized/{index}/x"] = x
        for key, value in answers.items():
            expected[f"resized/{index}/{key}"] = value
        expected[f"resized/{index}/positions"] = other.pos_embed.detach()[
            0
        ].numpy()
    np.savez(folder / "expected.npz", **expected)


def shrunk(architecture, model):
    """Return arguments of a small model of an architecture of timm.

    `model` is the model of full size, without memory.
    """
    patches = getattr(model, "patch_embed", None) or model.embeds
    side = patches.patch_size
    side = side if isinstance(side, int) else side[0]
    arguments = {"embed_dim": 48, "depth": 2, "num_heads": 3}
    size = (4 * side, 4 * side)
    if hasattr(patches, "backbone"):
        size = (96, 96) if "s32" in architecture else (64, 64)
    if "mci" in architecture:
        del arguments["embed_dim"]  # Its stem fixes the width.
    if "sapiens" in architecture:
        size = (4 * side, 3 * side)
        has_groups = any(
            block.attn.num_kv_heads < block.attn.num_heads
            for block in model.blocks
        )
        arguments["num_kv_heads"] = (3, 1) if has_groups else 3
    if hasattr(model, "embeds"):
        arguments["pos_embed_grid_size"] = (4, 4)
    else:
        arguments["img_size"] = size
    if model.num_classes:
        arguments["num_classes"] = 7
    return arguments, (2, *size, 3)


def build_architecture(folder, name, seed, hub=True, resized=False):
    """Write a small random model of timm's `name`, images and its answers.

    With `hub`, the name and the arguments lie beside it in config.json. With
    `resized`, timm reads this at another size and answers again.
    """
    timm = import_peer("timm")
    import torch
    from safetensors.torch import save_file

    with torch.device("meta"):
        arguments, shape = shrunk(name, timm.create_model(name))
    model = fill(timm.create_model(name, **arguments), seed)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    if hub:
        timm.models.save_for_hf(
            model, folder, model_args=arguments, safe_serialization=True
        )
    else:
        save_file(model.state_dict(), folder / "weights.safetensors")
    x = draw_images(shape, seed)
    found = run_timm(model, x)
    if hub and hasattr(model, "forward_intermediates"):
        with torch.inference_mode():
            maps = model.forward_intermediates(
                channels_first(x), norm=True, intermediates_only=True
            )
        for index, map_ in enumerate(maps if type(maps) is list else ()):
            found[f"map/{index}"] = map_.permute(0, 2, 3, 1).numpy()
    if resized:
        # Of other sides, and not a square.
        size = (shape[1] * 3 // 2, shape[1] // 2)
        if not hasattr(model, "embeds"):
            model = timm.create_model(
                f"local-dir:{folder}", pretrained=True, img_size=size
            ).eval()
        other = draw_images((2, *size, 3), seed + 1)
        found["other/x"] = other
        found["other/logits"] = run_timm(model, other)["logits"]
    np.savez(folder / "expected.npz", x=x, **found)


def answer_bit(path, arguments, shapes):
    """Let timm read a published file of BiT; write its logits beside it."""
    timm = import_peer("timm")
    import torch

    resnetv2 = timm.models.resnetv2
    model = resnetv2.ResNetV2(
        **arguments,
        stem_type="fixed",
        conv_layer=functools.partial(resnetv2.StdConv2d, eps=1e-8),
    )
    model.load_pretrained(path)
    model.eval()
    found = {}
    for index, shape in enumerate(shapes):
        x = draw_images(shape, index)
        with torch.inference_mode():
            logits = model(channels_first(x)).numpy()
        found |= {f"x/{index}": x, f"logits/{index}": logits}
    np.savez(pathlib.Path(path).with_suffix(".answers.npz"), **found)


def look_into_huggingface(model, images):
    """Return the logits of `model`, and the tokens and maps of its blocks."""
    import torch

    with torch.inference_mode():
        answer = model(
            channels_first(images),
            output_hidden_states=True,
            output_attentions=True,
        )
    found = {"logits": answer.logits.numpy()}
    # The first hidden states are those before the first block.
    for index, hidden in enumerate(answer.hidden_states[1:]):
        found[f"hidden/{index}"] = hidden.numpy()
    for index, attention in enumerate(answer.attentions):
        found[f"attention/{index}"] = attention.numpy()
    return found


# Parts of the names of classes that are encoders with something behind them.
WITH_DECODER = ("MaskedImage", "PreTraining", "Depth", "Segmentation")


def run_huggingface(model, images, **inputs):
    """Return the answers of the image model in `model`, tokens included."""
    import torch

    inputs = {"pixel_values": channels_first(images), **inputs}
    name = type(model).__name__
    if name.startswith("Siglip2"):
        inputs = flat_patches(inputs["pixel_values"])
    if name.startswith("ViTMAE"):
        # It shuffles the patches by these numbers.
        inputs["noise"] = torch.arange(16.0)[None].repeat(len(images), 1)
    run = model
    if name == "InternVLModel":
        run = model.vision_tower
    elif hasattr(model, "get_image_features"):
        run = model.get_image_features
    elif any(map(name.__contains__, WITH_DECODER)):
        run = getattr(model, model.base_model_prefix)
    with torch.inference_mode():
        answer = run(**inputs)
    if torch.is_tensor(answer):
        return {"answer": answer.numpy()}
    found = {}
    for key in ("logits", "image_embeds", "pooler_output", "summary"):
        if getattr(answer, key, None) is not None:
            found.setdefault("answer", getattr(answer, key).numpy())
    tokens = getattr(answer, "last_hidden_state", None)
    if tokens is not None and run != getattr(model, "get_image_features", 0):
        found["tokens"] = tokens.numpy()
    return found


def flat_patches(pixels, size=8):
    """Return patches in the order (row, column, channel), and their grid."""
    import torch

    batch, channels, height, width = pixels.shape
    h, w = height // size, width // size
    patches = pixels.reshape(batch, channels, h, size, w, size)
    patches = patches.permute(0, 2, 4, 3, 5, 1)
    return {
        "pixel_values": patches.reshape(batch, h * w, -1),
        "pixel_attention_mask": torch.ones(batch, h * w, dtype=torch.long),
        "spatial_shapes": torch.tensor([[h, w]] * batch),
    }


def build_huggingface_class(
    folder,
    kind,
    config,
    arguments,
    seed,
    size=(32, 32),
    resized=None,
    details=False,
    raw=False,
    max_shard_size="50GB",
    **choices,
):
    """Write a random model of the class `kind`, images and its answers.

    It is what `save_pretrained` writes, or with `raw` the state dict as it is
    in memory. `resized` are inputs beside larger images, for which positions
    are resized, and with `details` the answers have those of blocks.
    """
    transformers = import_peer("transformers")
    from safetensors.torch import save_file

    config = getattr(transformers, config)(**arguments)
    config._attn_implementation = "eager"
    model = fill(getattr(transformers, kind)(config, **choices), seed)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    if raw:
        save_file(model.state_dict(), folder / "weights.safetensors")
    else:
        model.save_pretrained(folder, max_shard_size=max_shard_size)
    x = draw_images((2, *size, 3), seed)
    found = run_huggingface(model, x)
    if details:
        found |= look_into_huggingface(model, x)
    np.savez(folder / "expected.npz", x=x, **found)
    if resized is not None:
        x = draw_images((2, 56, 40, 3), seed)
        found = run_huggingface(model, x, **resized)
        np.savez(folder / "resized.npz", x=x, **found)


# ------------------------------------------------------- sequences of patches


def answer_timm_patches(path, inputs, output, patch_size=None):
    """Write the outputs of timm's model of a folder for patches with places."""
    timm = import_peer("timm")
    import torch

    model = timm.create_model(
        f"local-dir:{path}",
        pretrained=True,
        enable_patch_interpolator=patch_size is not None,
    )
    with np.load(inputs) as file:
        patches = torch.from_numpy(file["patches"])
        if patch_size is not None:
            shape = (*patches.shape[:2], patch_size, patch_size, -1)
            patches = patches.reshape(shape)
        found = {
            "patches": patches,
            "patch_coord": torch.from_numpy(file["coordinates"]),
            "patch_valid": torch.from_numpy(file["mask"]),
        }
    with torch.inference_mode():
        np.savez(output, logits=model.eval()(found).numpy())


def answer_huggingface_patches(path, inputs, output, kind):
    """Write the outputs of a class of SigLIP 2 for patches with places."""
    import torch

    transformers = import_peer("transformers")
    model = getattr(transformers, kind).from_pretrained(path).eval()
    with np.load(inputs) as file:
        found = {
            "pixel_values": torch.from_numpy(file["patches"]),
            "pixel_attention_mask": torch.from_numpy(file["mask"]).long(),
            "spatial_shapes": torch.from_numpy(
                file["coordinates"].max(axis=1) + 1
            ),
        }
    with torch.inference_mode():
        answer = model(**found)
    logits = answer.logits if "logits" in answer else answer.pooler_output
    np.savez(output, logits=logits.numpy())


def process_patches(photos, output, patch_size, max_patches):
    """Write the patches that the image processor of SigLIP 2 makes."""
    transformers = import_peer("transformers")
    from PIL import Image

    processor = transformers.Siglip2ImageProcessorPil(
        patch_size=patch_size, max_num_patches=max_patches
    )
    found = processor([Image.open(path) for path in photos])
    np.savez(
        output,
        patches=np.stack(found["pixel_values"]),
        mask=np.stack(found["pixel_attention_mask"]),
        grids=np.stack(found["spatial_shapes"]),
    )


# ------------------------------------------------- files that keras_vit wrote


def load_timm(path, images, output, arguments=None, name=None):
    """Write the outputs of timm with a file, or with a folder."""
    timm = import_peer("timm")
    from safetensors.torch import load_file

    if arguments is None:
        model = timm.create_model(f"local-dir:{path}", pretrained=True)
    else:
        model = timm_model(timm, arguments, name)
        model.load_state_dict(load_file(path), strict=True)
    np.savez(output, **run_timm(model.eval(), np.load(images)["x"]))


def load_completely(path, kind, **arguments):
    """Return the model of a class of Hugging Face of which nothing is new."""
    model, info = getattr(import_peer("transformers"), kind).from_pretrained(
        path, output_loading_info=True, **arguments
    )
    wrong = {key: sorted(map(str, rows)) for key, rows in info.items() if rows}
    if wrong:
        raise ValueError(f"{path}: {wrong}")
    return model.eval()


def load_huggingface(path, images, output, kind, **arguments):
    """Write the outputs of Hugging Face with a folder, loaded completely.

    Of a model without a head and a pooler they are its tokens.
    """
    model = load_completely(path, kind, **arguments)
    found = run_huggingface(model, np.load(images)["x"])
    key = "answer" if "answer" in found else "tokens"
    np.savez(output, logits=found[key])


def answer_pixels(path, images, output, kind):
    """Write the logits or depths of a folder, at the size of the images."""
    import torch

    model = load_completely(path, kind)
    x = channels_first(np.load(images)["x"])
    with torch.inference_mode():
        answer = model(pixel_values=x)
        is_depth = "predicted_depth" in answer
        y = answer.predicted_depth[:, None] if is_depth else answer.logits
        y = torch.nn.functional.interpolate(y, x.shape[2:], mode="bilinear")
    np.savez(output, y=y.numpy().transpose(0, 2, 3, 1))


def transform_timm(path, photos, output):
    """Write the pixels that timm makes of photos for the model of a folder."""
    timm = import_peer("timm")
    from PIL import Image

    model = timm.create_model(f"local-dir:{path}", pretrained=True)
    data = importlib.import_module("timm.data")
    settings = data.resolve_model_data_config(model)
    transform = data.create_transform(**settings, is_training=False)
    pixels = [transform(Image.open(photo)).numpy() for photo in photos]
    np.savez(output, pixels=np.stack(pixels).transpose(0, 2, 3, 1))


def process_huggingface(path, photos, output, kind=None, arguments=None):
    """Write the pixels that an image processor makes of photos.

    It is that of a folder; or a `kind` with `arguments`, written there.
    """
    transformers = import_peer("transformers")
    from PIL import Image

    if kind is None:
        processor = transformers.AutoImageProcessor.from_pretrained(
            path, backend="pil"
        )
    else:
        processor = getattr(transformers, f"{kind}Pil")(**arguments)
        processor.save_pretrained(path)
    images = [Image.open(photo) for photo in photos]
    pixels = processor(images, return_tensors="np")["pixel_values"]
    np.savez(output, pixels=np.asarray(pixels).transpose(0, 2, 3, 1))


# ------------------------------------------------------------ single functions


def resample(output, kernel, positions, sizes, grids, channels):
    """Write kernels and position tables that timm has resized.

    Kernels (P, P, C, D) to other `sizes` of patches and numbers of
    `channels`, tables (T, D) of a `grid` to other `grids`, the first is its
    own.
    """
    import_peer("timm")
    import torch
    from timm.layers import (
        resample_abs_pos_embed,
        resample_patch_embed,
        resize_rel_pos_bias_table,
    )
    from timm.models import adapt_input_conv

    rng = np.random.default_rng(7)
    kernel = rng.standard_normal(kernel, "float32")
    table = rng.standard_normal(positions, "float32")
    found = {"kernel": kernel, "table": table}
    weight = torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy())
    back = (2, 3, 1, 0)
    for size in sizes:
        resized = resample_patch_embed(weight, [size, size])
        found[f"patch/{size}"] = resized.numpy().transpose(back)
    for count in channels:
        adapted = adapt_input_conv(
            count, weight.clone(), base_chans=weight.shape[1]
        )
        found[f"channels/{count}"] = adapted.numpy().transpose(back)
    old = grids[0]
    for grid in grids[1:]:
        resized = resample_abs_pos_embed(
            torch.from_numpy(table)[None], grid, old_size=old
        )
        found["positions/{}x{}".format(*grid)] = resized[0].numpy()
    # The distances in a square window, and three more.
    square = rng.standard_normal((7 * 7 + 3, 4), "float32")
    found["distances"] = square
    for rows, columns in ((6, 5), (3, 3), (4, 7), (14, 9)):
        shape = ((2 * rows - 1) * (2 * columns - 1) + 3, 4)
        resized = resize_rel_pos_bias_table(
            torch.from_numpy(square), (rows, columns), shape
        )
        found[f"distances/{rows}x{columns}"] = resized.numpy()
    np.savez(output, **found)


def run_code(code, folder):
    """Run the code of a page in `folder`."""
    for name in ("timm", "transformers"):
        import_peer(name)
    os.chdir(folder)
    exec(compile(code, "page", "exec"), {})


TASKS = {
    task.__name__: task
    for task in (
        build_timm,
        build_architecture,
        answer_bit,
        build_huggingface_class,
        load_timm,
        load_huggingface,
        answer_pixels,
        process_huggingface,
        transform_timm,
        resample,
        answer_timm_patches,
        answer_huggingface_patches,
        process_patches,
        run_code,
    )
}


def do_requests(path):
    errors = []
    for request in json.loads(path.read_text()):
        try:
            TASKS[request.pop("task")](**request)
        except Exception:
            errors.append(traceback.format_exc())
        else:
            errors.append(None)
    path.with_suffix(".errors.json").write_text(json.dumps(errors))


def main():
    # Whatever a library would like to fetch, it is not for these tests.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # What the libraries print must not look like the end of a file.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        do_requests(pathlib.Path(line.removesuffix("\n")))
        print(file=answers, flush=True)


if __name__ == "__main__":
    main()
