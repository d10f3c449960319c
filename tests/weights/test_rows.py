"""The rows of the tables one by one: names, values, notes and JSON files.

Each row is written out here a second time, with where it comes from.
"""

import json
import logging
import re
import shutil

import keras
import numpy as np
import pytest

from keras_vit import (
    VARIANTS,
    VisionTransformer,
    ViT_Ti16,
    convert,
    from_checkpoint,
    inspect_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from keras_vit.weights.containers import open_checkpoint
from keras_vit.weights.families import LAYOUTS, huggingface, timm
from keras_vit.weights.foreign_parts import foreign_parts
from keras_vit.weights.hints import find_hints
from keras_vit.weights.source import identify
from tests.tiny import randomize, tiny_config, to_numpy
from tests.weights import forms
from tests.weights.cases import answer_of, expected_of, path_of

TIMM = "timm_token.safetensors"


def stored_in(name):
    with open_checkpoint(path_of(name)) as checkpoint:
        return {n: checkpoint.read(n) for n in checkpoint.entries}


def assert_answers(model, name, tolerance=1e-5):
    np.testing.assert_allclose(
        to_numpy(model(expected_of(name)["x"])),
        answer_of(name),
        rtol=0,
        atol=tolerance,
    )


def make(**choices):
    return randomize(VisionTransformer(tiny_config(**choices)))


# ----------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "wrapper"),
    [
        ("official_token.npz", "target/"),
        ("official_token.npz", "params/"),
        (TIMM, "module."),
        (TIMM, "model."),
        (TIMM, "_orig_mod."),
        (TIMM, "state_dict."),
        ("hf_vit", "module."),
        ("hf_vit", "model."),
        ("big_vision_gap.npz", "img/"),
        ("big_vision_gap.npz", "params/img/"),
        ("big_vision_gap.npz", "opt/target/"),
    ],
)
def test_what_may_stand_before_every_name(name, wrapper, tmp_path):
    arrays = forms.wrapped(forms.unwrapped(stored_in(name)), wrapper)
    np.savez(tmp_path / "m.npz", **arrays)
    options = {"num_heads": 3} if name in (TIMM, "hf_vit") else {}
    if name == "hf_vit":
        options["gelu"] = "exact"
    model = from_checkpoint(tmp_path / "m.npz", **options)
    assert set(model.load_report.used) == set(arrays)
    assert_answers(model, name)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("official_token.npz", ["opt_state/0/count", "step", "chrono/a"]),
        ("official_token.npz", ["optimizer/x", "state/x", "measurements/x"]),
        (TIMM, ["mask_token", "epoch", "optimizer"]),
        ("hf_vit", ["vit.embeddings.mask_token"]),
        ("hf_vit", ["vit.embeddings.position_ids"]),
        ("big_vision_gap.npz", ["txt/head/kernel", "t", "b"]),
        ("keras_hub", ["seed_generator/vars/0", "optimizer/vars/0"]),
        ("vit_keras.weights.h5", ["layers/dropout/seed_generator/vars/0"]),
        ("vit_keras.weights.h5", ["optimizer/vars/0"]),
        ("vit_keras.h5", ["optimizer_weights/adam/m"]),
        ("vit_keras.h5", ["top_level_model_weights/x"]),
    ],
    ids=str,
)
def test_what_is_no_weight_is_ignored(name, more, tmp_path):
    arrays = stored_in(name)
    if name.startswith("big_vision"):
        arrays = forms.unwrapped(arrays)
    path = tmp_path / "m.npz"
    np.savez(path, **{**arrays, **dict.fromkeys(more, np.zeros(3, "f4"))})
    with open_checkpoint(path) as checkpoint:
        source = identify(checkpoint, num_heads=3, image_size=(32, 48))
    assert set(more) <= set(source.ignored)


@pytest.mark.parametrize(
    "name", [TIMM, "hf_vit", "keras_hub", "official_token.npz"]
)
def test_a_missing_bias_is_zero_or_an_error(name, tmp_path):
    """Libraries in which the bias of queries can be left out; Flax' cannot."""
    pattern = r"attn\.qkv\.bias|attention\.attention\..*bias|_dense/vars/1"
    pattern = pattern.replace("_dense", "mha/(query|key|value)_dense")
    pattern += r"|MultiHead.*/(query|key|value)/bias"
    arrays = stored_in(name)
    biases = [n for n in arrays if re.search(pattern, n)]
    assert len(biases) == (2 if name == TIMM else 6)
    for bias in biases:
        del arrays[bias]
    path = tmp_path / "m.npz"
    np.savez(path, **arrays)
    if name == "official_token.npz":
        with pytest.raises(ValueError, match="missing: .*bias"):
            from_checkpoint(path)
        return
    model = from_checkpoint(path, num_heads=3, image_size=32)
    found = {w.path: to_numpy(w) for w in model.weights}
    assert not found["block_01/attention/qkv/bias"].any()
    assert found["block_01/attention/qkv/kernel"].any()


def test_a_table_of_timm_without_the_row_of_the_class_token(tmp_path):
    """no_embed_class=True: positions are added before the token is."""
    arrays = stored_in(TIMM)
    row = arrays["pos_embed"][:, :1]
    arrays["pos_embed"] = arrays["pos_embed"][:, 1:]
    arrays["cls_token"] = arrays["cls_token"] + row
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(ValueError, match="16 positions are no square grid"):
        from_checkpoint(tmp_path / "m.npz", num_heads=3)
    for size in (32, (16, 64)):
        path = tmp_path / "m.npz"
        model = from_checkpoint(path, num_heads=3, source_image_size=size)
        table = to_numpy(model.get_layer("position_embedding").embedding)
        np.testing.assert_array_equal(table[1:], arrays["pos_embed"][0])
        assert not table[0].any()
    path = tmp_path / "m.npz"
    model = from_checkpoint(path, num_heads=3, source_image_size=32)
    assert_answers(model, TIMM)
    # A size for the model alone does not say that the row is missing: these
    # might be 3x5 patches behind one.
    with pytest.raises(ValueError, match="16 positions are no square grid"):
        from_checkpoint(path, num_heads=3, image_size=32)


# vit-keras named its blocks otherwise in every version of Keras.
H5_SPELLINGS = {
    "slash": (r"Transformer_(encoder|posembed)", r"Transformer/\1"),
    "plain": (r"Transformer_(encoder|posembed)", r"\1"),
    "short": (r"/MlpBlock_3/Transformer_encoderblock_\d/?_?", "/"),
    "colon": (r"$", ":0"),
}


@pytest.mark.parametrize("spelling", H5_SPELLINGS)
def test_the_spellings_of_vit_keras(spelling, tmp_path):
    arrays = stored_in("vit_keras.h5")
    change = H5_SPELLINGS[spelling]
    arrays = forms.renamed(arrays, change)
    assert arrays.keys() != stored_in("vit_keras.h5").keys()
    np.savez(tmp_path / "m.npz", **arrays)
    model = from_checkpoint(
        tmp_path / "m.npz", num_heads=3, image_size=(32, 48)
    )
    assert_answers(model, "vit_keras.h5")


FOREIGN = {
    "head_dist.weight": "a distillation token",
    "embeddings.distillation_token": "a distillation token",
    "embeddings.register_token": "register tokens",
    "layer.0.layer_scale1.lambda1": "LayerScale",
    "blocks.0.lambda_2": "LayerScale",
    "blocks.0.gamma_1": "LayerScale",
    "attention/query_norm/scale": "a norm of queries and keys",
    "attention/key_norm/scale": "a norm of queries and keys",
    "ln_pre.weight": "a norm before the first block",
    "layer.0.relative_position_bias": "relative positions",
    "freqs": "rotary positions",
    "blocks.0.mlp.w12.weight": "a gated MLP",
    "blocks.0.mlp.fc1_g.weight": "a gated MLP",
    "layer.0.mlp.swiglu.weight": "a gated MLP",
    "layer.0.mlp.weights_in.weight": "a gated MLP",
    "query.lora_A.weight": "LoRA adapters, to be merged first",
    "decoder.decoder_embed.weight": "a decoder of masked patches",
    "txt/head": "a text tower",
    "text_model.embeddings": "a text tower",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_a_foreign_name_tells(name):
    assert foreign_parts(["head", name]) == [f"{FOREIGN[name]} ({name})"]


def test_an_unknown_family_tells_of_foreign_parts(tmp_path):
    arrays = {"reg_token": np.zeros(3, "f4"), "a": np.zeros(3, "f4")}
    np.savez(tmp_path / "m.npz", **arrays)
    words = r"no ViT of a known family.* They show register tokens"
    with pytest.raises(ValueError, match=words):
        from_checkpoint(tmp_path / "m.npz")


# ----------------------------------------------------------------- values

VALUES = {
    "hidden_act": {
        "gelu": "exact",
        "gelu_python": "exact",
        "gelu_new": "tanh",
        "gelu_fast": "tanh",
        "gelu_pytorch_tanh": "tanh",
        "gelu_python_tanh": "tanh",
    },
    "act_layer": {"gelu": "exact", "gelu_tanh": "tanh"},
    "gelu": {"erf": "exact", "exact": "exact", "tanh": "tanh"},
    "pool": {
        "tok": "token",
        "token": "token",
        "gap": "avg",
        "map": "map",
        "none": "none",
        "unpooled": "none",
    },
    "global_pool": {"token": "token", "avg": "avg", "max": "max", "": "none"},
    "classifier": {"token": "token", "gap": "avg", "unpooled": "none"},
    "posemb": {"learn": "learned", "sincos2d": "sincos_2d"},
}
FIELDS = {
    "hidden_act": "gelu",
    "act_layer": "gelu",
    "gelu": "gelu",
    "pool": "pooling",
    "global_pool": "pooling",
    "classifier": "pooling",
    "posemb": "position_embedding",
}


@pytest.mark.parametrize("key", VALUES)
def test_every_value_of_a_hint(key):
    for theirs, ours in VALUES[key].items():
        assert find_hints({key: theirs}) == {FIELDS[key]: ours}


@pytest.mark.parametrize(
    "config",
    [
        {"pool": "cls"},
        {"classifier": "head.fc"},
        {"pool_include_prefix": "no"},
        {"num_heads": 2**20},
        {"num_heads": 0},
        {"layer_norm_eps": 1.0},
        {"layer_norm_eps": 0},
    ],
    ids=str,
)
def test_a_value_that_cannot_be_one_is_passed_over(config):
    assert find_hints(config) == {}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ([3, 32, 48], (32, 48)),
        ([32, 48, 3], (32, 48)),
        ([48, 32, 3], (48, 32)),
        ([3, 48, 32], (48, 32)),
        ([None, 48, 32, 3], (48, 32)),
        ([48, 32], (48, 32)),
    ],
    ids=str,
)
def test_an_image_size_with_and_without_channels(size, expected):
    assert find_hints({"input_size": size}) == {"image_sizes": [expected]}


def test_epsilons_follow_the_family(tmp_path):
    """Without a JSON file that says them; config.json says 1e-12 too."""
    np.savez(tmp_path / "m.npz", **stored_in("hf_vit"))
    model = from_checkpoint(tmp_path / "m.npz", num_heads=3)
    assert model.config.layer_norm_epsilon == 1e-12
    assert LAYOUTS["timm"].layer_norm_epsilon == 1e-6


def test_another_stem_is_noted(tmp_path):
    model = make(stem_stages=(), patch_size=4, stem_epsilons="timm")
    path = tmp_path / "m.safetensors"
    save_checkpoint(model, path, layout="timm")
    other = make(stem_stages=(), patch_size=4, gelu=model.config.gelu)
    with pytest.warns(UserWarning, match="`stem_epsilons='timm'` to mend"):
        report = load_checkpoint(other, path)
    assert len(report.notes) == 1


# ------------------------------------------------------------- JSON files


def test_what_is_said_to_hugging_face():
    config = tiny_config(
        image_size=(32, 48),
        channels=4,
        dropout_rate=0.25,
        attention_dropout_rate=0.5,
        representation_size=16,
        num_classes=0,
        gelu="tanh",
    )
    jsons = huggingface.make_jsons(config)
    assert jsons == {
        "config.json": {
            "architectures": ["ViTModel"],
            "model_type": "vit",
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 48,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
            "image_size": [32, 48],
            "patch_size": 8,
            "num_channels": 4,
            "qkv_bias": True,
            "hidden_dropout_prob": 0.25,
            "attention_probs_dropout_prob": 0.5,
            "initializer_range": 0.02,
            "encoder_stride": 8,
            "torch_dtype": "float32",
            "pooler_output_size": 16,
            "pooler_act": "tanh",
        },
        "preprocessor_config.json": {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": 32, "width": 48},
            "resample": 2,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5] * 4,
            "image_std": [0.5] * 4,
        },
    }
    assert json.loads(json.dumps(jsons)) == jsons
    model = huggingface.make_jsons(tiny_config(num_classes=2))["config.json"]
    assert model["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert model["label2id"] == {"LABEL_0": 0, "LABEL_1": 1}


def test_what_is_said_to_timm():
    config = tiny_config(
        image_size=(32, 48),
        channels=4,
        mlp_dim=60,
        pooling="avg",
        use_class_token=False,
        use_pooling_norm=True,
        gelu="tanh",
    )
    jsons = timm.make_jsons(config)
    assert jsons == {
        "config.json": {
            "architecture": "vit_base_patch16_224",
            "num_classes": 7,
            "num_features": 24,
            "global_pool": "avg",
            "model_args": {
                "img_size": [32, 48],
                "patch_size": 8,
                "in_chans": 4,
                "embed_dim": 24,
                "depth": 2,
                "num_heads": 3,
                "mlp_ratio": 2.5,
                "class_token": False,
                "global_pool": "avg",
                "fc_norm": True,
                "act_layer": "gelu_tanh",
            },
            "pretrained_cfg": {
                "num_classes": 7,
                "input_size": [4, 32, 48],
                "fixed_input_size": True,
                "interpolation": "bilinear",
                "crop_pct": 1.0,
                "mean": [0.5] * 3,
                "std": [0.5] * 3,
                "first_conv": "patch_embed.proj",
                "classifier": "head",
            },
        }
    }
    tokens = timm.make_jsons(tiny_config(pooling="none"))["config.json"]
    assert tokens["global_pool"] == tokens["model_args"]["global_pool"] == ""


def test_timm_makes_the_mlp_as_wide_as_it_was():
    """timm: hidden_features=int(dim * mlp_ratio)."""
    for width in range(1, 400, 3):
        for mlp_dim in (width + 1, 2 * width + 3, 4 * width - 1):
            config = tiny_config(width=width, mlp_dim=mlp_dim, num_heads=1)
            [model] = timm.make_jsons(config).values()
            assert int(width * model["model_args"]["mlp_ratio"]) == mlp_dim


# ------------------------------------------------------------------ notes


def test_a_note_is_for_what_differs(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        # Features end in no activation, whatever that of a head would be.
        features = make(num_classes=0, classifier_activation="softmax")
        assert save_checkpoint(features, tmp_path / "m.npz") == ()
        # Without a stem its epsilons do not matter.
        plain = make(stem_epsilons="timm")
        assert save_checkpoint(plain, tmp_path / "m.npz") == ()
        # config.json says all of it.
        exact = make(gelu="exact", layer_norm_epsilon=1e-5)
        path = tmp_path / "hf"
        assert save_checkpoint(exact, path, layout="huggingface") == ()
    assert caplog.text == ""


def test_a_last_norm_after_the_pooling_is_not_for_hugging_face(tmp_path):
    model = make(use_pooling_norm=True)
    with pytest.raises(ValueError, match="norm comes before the pooling"):
        save_checkpoint(model, tmp_path / "hf", layout="huggingface")


def test_a_path_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    save_checkpoint(make(), "~/m.npz")
    assert (tmp_path / "m.npz").is_file()


# --------------------------------------------------------------- commands


def test_a_failed_conversion_leaves_no_draft(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no space left on device")

    target = tmp_path / "m.keras"
    target.write_text("before")

    def half(model, path):
        with open(path, "w") as file:
            file.write("half")
        fail()

    monkeypatch.setattr(VisionTransformer, "save", half)
    source = str(path_of("official_token.npz"))
    assert convert.main([source, str(target), "--layout=keras"]) == 1
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_the_hints_reach_the_commands(tmp_path, capsys):
    path = tmp_path / "m.safetensors"
    shutil.copy(path_of("timm_rect.safetensors"), path)
    hints = ["--num_heads=3", "--source_image_size=24X40"]
    assert inspect_checkpoint.main([str(path), *hints]) == 0
    output = capsys.readouterr().out
    assert "image_size               (24, 40)" in output
    assert "variant        of its own" in output
    out = str(tmp_path / "folder" / "out.keras")
    assert convert.main([str(path), out, "--layout=keras", *hints]) == 0
    model = keras.saving.load_model(out)
    assert (model.config.num_heads, model.config.image_size) == (3, (24, 40))
    # A .keras file knows its size; the flag resizes it.
    small = str(tmp_path / "small.keras")
    arguments = [out, small, "--layout=keras", "--image_size=16"]
    assert convert.main(arguments) == 0
    assert keras.saving.load_model(small).config.image_size == (16, 16)


def test_what_is_ignored_or_left_out_is_listed(tmp_path, capsys):
    arrays = stored_in(TIMM)
    del arrays["blocks.0.attn.qkv.bias"], arrays["blocks.1.attn.qkv.bias"]
    arrays["mask_token"] = np.zeros((1, 1, 24), "f4")
    np.savez(tmp_path / "m.npz", **arrays)
    path = str(tmp_path / "m.npz")
    assert inspect_checkpoint.main([path, "--num_heads=3"]) == 0
    output = capsys.readouterr().out
    assert f"arrays         {len(arrays)}, 1 of them ignored" in output
    assert re.search(r"block_00/attention/qkv/bias +\(left out: zero\)", output)
    assert re.search(r"\(ignored\) +mask_token +\(1, 1, 24\) +<f4", output)


@pytest.mark.parametrize("command", [inspect_checkpoint, convert])
def test_without_a_connection_a_command_says_so(
    command, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    monkeypatch.setenv("KERAS_VIT_MIRROR", "http://127.0.0.1:9")
    arguments = ["B/16-sam"]
    if command is convert:
        arguments += [str(tmp_path / "m.npz"), "--layout=official"]
    assert command.main(arguments) == 1
    assert "could not be fetched" in capsys.readouterr().err


def test_a_hybrid_is_not_named_as_the_plain_variant():
    """Nor a model without the class token as one that has it."""
    for variant in VARIANTS.values():
        theirs = VARIANTS[inspect_checkpoint.variant_of(variant.config)].config
        for field in ("width", "depth", "stem_stages", "use_class_token"):
            assert getattr(theirs, field) == getattr(variant.config, field)


# ------------------------------------------------------- files and their JSON


def test_the_configuration_of_another_file_is_not_read(tmp_path):
    """config.json belongs to model.safetensors alone."""
    path = tmp_path / "other.safetensors"
    shutil.copy(path_of(TIMM), path)
    (tmp_path / "config.json").write_text('{"num_heads": 3}')
    with pytest.raises(ValueError, match="does not store the number of heads"):
        from_checkpoint(path)
    path.rename(tmp_path / "model.safetensors")
    model = from_checkpoint(tmp_path / "model.safetensors")
    assert model.config.num_heads == 3


def test_what_a_file_says_of_itself_goes_before_what_lies_beside(tmp_path):
    path = tmp_path / "m.safetensors"
    save_checkpoint(make(gelu="tanh"), path, layout="timm")
    path.with_suffix(".json").write_text('{"gelu": "exact"}')
    assert from_checkpoint(path).config.gelu == "tanh"


def test_the_header_is_as_others_want_it(tmp_path):
    """Whole words, and the "format" without which transformers refuses it."""
    path = tmp_path / "m.safetensors"
    for classes in range(8):
        save_checkpoint(make(num_classes=classes), path, layout="timm")
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        assert length % 8 == 0
        header = json.loads(data[8 : 8 + length])
        assert header["__metadata__"]["format"] == "pt"


def test_the_image_size_of_a_root_alone(tmp_path):
    name = "official_hybrid_root_only.npz"
    shutil.copy(path_of(name), tmp_path / "m.npz")
    model = from_checkpoint(tmp_path / "m.npz")
    assert model.config.image_size == expected_of(name)["x"].shape[1:3]


# ---------------------------------------------------------------- new heads


def test_new_pre_logits_are_lecun_normal():
    """The deviation is that of the inputs, 24, not of the 400 outputs."""
    model = make(representation_size=400)
    load_checkpoint(model, path_of("official_token.npz"))
    kernel = to_numpy(model.get_layer("pre_logits").kernel)
    assert kernel.shape == (24, 400)
    assert abs(kernel.std() * np.sqrt(24) - 1) < 0.1


def test_a_zero_head_of_others_is_not_blamed_on_the_official_files(tmp_path):
    arrays = forms.arrays_of("official_token.npz")
    arrays["head/kernel"] = arrays["head/kernel"] * 0
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.warns(UserWarning, match="all zeros") as caught:
        from_checkpoint(tmp_path / "m.npz")
    assert "issues" not in str(caught[0].message)


def test_the_name_of_a_model():
    path = path_of("official_token.npz")
    assert from_checkpoint(path).name == "vision_transformer"


def test_another_number_of_heads_is_another_variant():
    with pytest.raises(ValueError, match="it has num_heads=3 and not 4"):
        ViT_Ti16(
            weights=path_of("official_token.npz"),
            width=24,
            depth=2,
            mlp_dim=48,
            patch_size=8,
            num_heads=4,
        )


# ------------------------------------------------------- what is not guessed


def test_stacks_of_unequal_depth_are_refused(tmp_path):
    arrays = forms.arrays_of("big_vision_gap_scan.npz")
    name = next(
        n for n in arrays if n.endswith("encoderblock/LayerNorm_0/bias")
    )
    arrays[name] = np.concatenate([arrays[name], arrays[name]])
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(ValueError, match="are not of one depth"):
        from_checkpoint(tmp_path / "m.npz")


def test_a_norm_after_the_pooling_tells_of_an_average(tmp_path):
    """timm has fc_norm where it averages, the class token or not."""
    arrays = forms.renamed(stored_in(TIMM), (r"^norm\.", "fc_norm."))
    np.savez(tmp_path / "m.npz", **arrays)
    config = from_checkpoint(tmp_path / "m.npz", num_heads=3).config
    assert (config.pooling, config.use_pooling_norm) == ("avg", True)


def test_a_pooling_that_the_weights_belie_is_passed_over(tmp_path):
    np.savez(tmp_path / "m.npz", **forms.arrays_of("official_token.npz"))
    (tmp_path / "m.json").write_text('{"pool": "map"}')
    assert from_checkpoint(tmp_path / "m.npz").config.pooling == "token"


def test_heads_are_not_taken_of_a_file_of_any_kind(tmp_path):
    """Only one that names an architecture of timm's own."""
    model = make(width=192, depth=12, mlp_dim=768)
    save_checkpoint(model, tmp_path / "own.safetensors", layout="timm")
    with open_checkpoint(tmp_path / "own.safetensors") as checkpoint:
        arrays = {n: checkpoint.read(n) for n in checkpoint.entries}
    np.savez(tmp_path / "m.npz", **arrays)
    (tmp_path / "m.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ValueError, match="published model of this size has 3"):
        from_checkpoint(tmp_path / "m.npz")
