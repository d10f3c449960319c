"""Text towers and their tokenizers, against transformers and OpenCLIP."""

import json
import shutil
import sys

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.models import TextConfig, TextTransformer
from keras_vit.texts import TextEncoder, load_text_encoder, zero_shot
from keras_vit.tokenization import read_tokenizer
from keras_vit.weights import text_from_checkpoint
from tests.golden import FOLDER
from tests.tiny import noise, to_numpy

GOLDEN = FOLDER / "towers"
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
each_name = pytest.mark.parametrize("name", NAMES)
# Images are normalised to [-1, 1], unlike those of CLIP.
pytestmark = pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")


def expected_of(name):
    with np.load(GOLDEN / f"{name}.expected.npz") as file:
        return dict(file)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def copy_of(name, tmp_path, **changes):
    """Return a copy of a golden folder, with changes of its text tower."""
    folder = shutil.copytree(GOLDEN / name, tmp_path / name)
    path = folder / "config.json"
    if not path.is_file():
        path = folder / "open_clip_config.json"
    content = json.loads(path.read_text())
    model = content.get("model_cfg", content)
    model["text_cfg" if model is not content else "text_config"] |= changes
    path.write_text(json.dumps(content))
    return folder


@each_name
def test_tokens_vectors_and_logits_are_those_of_the_source(name):
    expected = expected_of(name)
    encode = load_text_encoder(GOLDEN / name)
    texts = expected["texts"].tolist()
    np.testing.assert_array_equal(encode.tokenizer(texts), expected["tokens"])
    # As `encode` does; JAX compiles every operation of a call by itself.
    vectors = encode.model.predict(expected["tokens"], batch_size=64, verbose=0)
    close(vectors, expected["text"])
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    close(encode(texts), vectors / lengths)

    model = zero_shot(GOLDEN / name, texts, ["{}"], text=encode)
    plain = model.with_classifier_activation(None)
    logits = plain.predict_on_batch(expected["x"])
    close(logits, expected["logits"])
    is_sigmoid = encode.model.config.logit_bias is not None
    assert is_sigmoid == ("siglip" in name)
    activation = "sigmoid" if is_sigmoid else "softmax"
    assert model.config.classifier_activation == activation


def test_shorter_texts_and_reloaded_models(tmp_path):
    """Of a causal tower, what follows the end changes nothing."""
    expected = expected_of("clip")
    model = text_from_checkpoint(GOLDEN / "clip")
    close(to_numpy(model(expected["tokens"][:1, :9])), expected["text"][:1])
    with pytest.raises(ValueError, match="16 or fewer"):
        model(np.zeros((1, 17), "int32"))
    model.save(tmp_path / "text.keras")
    again = keras.saving.load_model(tmp_path / "text.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(
        to_numpy(again(expected["tokens"])), to_numpy(model(expected["tokens"]))
    )


def test_the_first_configurations_of_clip(tmp_path):
    """What `text_config_dict` leaves out has its default, as there."""
    folder = copy_of("clip", tmp_path, eos_token_id=2, hidden_act="gelu")
    path = folder / "config.json"
    content = json.loads(path.read_text())
    tower = content["text_config"]
    names = (
        *("vocab_size", "hidden_size", "intermediate_size"),
        *("num_hidden_layers", "num_attention_heads"),
        "max_position_embeddings",
    )
    content["text_config_dict"] = {
        **{key: tower[key] for key in names},
        "eos_token_id": int(expected_of("clip")["tokens"].max()),
    }
    path.write_text(json.dumps(content))
    expected = expected_of("clip")
    model = text_from_checkpoint(folder)
    assert model.config.activation == "quick"
    close(to_numpy(model(expected["tokens"])), expected["text"])


@pytest.mark.parametrize(
    "name, changes, word",
    [
        ("clip", {"num_attention_heads": 5}, "num_heads"),
        ("clip", {"vocab_size": 600}, "token_embedding"),
        ("clip", {"num_hidden_layers": 3}, "layers.2"),
        ("clip", {"num_hidden_layers": 1}, "layers.1"),
        ("clip", {"hidden_act": "mish"}, "hidden_act"),
        ("clip", {"eos_token_id": 9999}, "9999"),
        ("open_clip", {"hf_model_name": "roberta-base"}, "hf_model_name"),
        ("open_clip", {"embed_cls": True}, "embed_cls"),
        ("open_clip", {"pool_type": "none"}, "pool_type"),
        ("open_clip", {"act_kwargs": {"inplace": True}}, "act_kwargs"),
        ("open_clip", {"qk_norm": True}, "qk_norm"),
        ("open_clip", {"tokenizer_mode": "clips"}, "tokenizer_mode"),
        ("open_clip", {"tokenizer_kwargs": {"language": "x"}}, "language"),
    ],
)
def test_what_is_not_read_is_named(name, changes, word, tmp_path):
    folder = copy_of(name, tmp_path, **changes)
    with pytest.raises(ValueError, match=word):
        load_text_encoder(folder)(["a cat"])


def test_files_without_a_text_tower_or_a_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="text tower"):
        text_from_checkpoint(FOLDER / "hf_vit")
    folder = copy_of("clip", tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="tokenizer.json"):
        load_text_encoder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="config.json"):
        text_from_checkpoint(folder)
    arrays = load_file(GOLDEN / "clip" / "model.safetensors")
    folder = copy_of("clip_old", tmp_path)
    del arrays["text_model.final_layer_norm.bias"]
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ValueError, match="final_layer_norm.bias"):
        text_from_checkpoint(folder)


@pytest.mark.parametrize(
    "name, package",
    [
        ("clip", "tokenizers"),
        ("siglip", "sentencepiece"),
        ("open_clip", "ftfy"),
    ],
)
def test_a_missing_package_is_named(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"pip install {package}"):
        load_text_encoder(GOLDEN / name)


@pytest.mark.parametrize("model_type", ["siglip", "siglip2"])
def test_a_gemma_tokenizer_of_siglip_2_lowers_texts(model_type, tmp_path):
    """The released files name it, and the texts of training were lowered."""
    folder = copy_of("siglip2", tmp_path)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(
        json.dumps({**settings, "tokenizer_class": "GemmaTokenizer"})
    )
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"] = content["normalizer"]["normalizers"][-1]
    path.write_text(json.dumps(content))
    expected = expected_of("siglip2")
    tokenizer = read_tokenizer(folder, {"model_type": model_type}, 16)
    tokens = tokenizer(expected["texts"].tolist())
    np.testing.assert_array_equal(tokens, expected["tokens"])


def retokenize(name, tmp_path, settings, about=None):
    """Return the golden texts and tokens, and a tokenizer with settings."""
    folder = shutil.copytree(GOLDEN / name, tmp_path / name)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    expected = expected_of(name)
    tokenizer = read_tokenizer(folder, about or {}, 16)
    return expected["texts"].tolist(), expected["tokens"], tokenizer


def test_texts_are_filled_up_from_the_side_of_the_files(tmp_path):
    texts, tokens, tokenizer = retokenize(
        "siglip2", tmp_path, {"padding_side": "left"}
    )
    for row, found in zip(tokens.tolist(), tokenizer(texts).tolist()):
        text = [token for token in row if token != 0]
        assert found == [0] * (16 - len(text)) + text


def test_a_text_of_pieces_has_one_end_before_what_fills_it_up(tmp_path):
    """Also if it is cut, is empty, or brings its own end."""
    texts, tokens, tokenizer = retokenize(
        "siglip", tmp_path, {"pad_token": "<unk>"}
    )
    expected = []
    for row in tokens.tolist():
        text = [token for token in row if token != 1]
        expected.append([*text, 1, *[2] * (15 - len(text))])
    assert tokenizer(texts).tolist() == expected
    assert tokenizer([f"{texts[0]}</s>"]).tolist() == expected[:1]


def test_zeros_follow_a_text_of_the_own_tokenizer_of_open_clip(tmp_path):
    texts, tokens, tokenizer = retokenize(
        "open_clip", tmp_path, {}, {"model_cfg": {"text_cfg": {}}}
    )
    end = tokens.max()
    is_text = np.cumsum(tokens == end, axis=1) - (tokens == end) == 0
    np.testing.assert_array_equal(tokenizer(texts), tokens * is_text)


def test_open_clip_strips_the_token_that_separates_texts(tmp_path):
    content = json.loads((GOLDEN / "open_clip/tokenizer.json").read_text())
    numbers = content["model"]["vocab"]
    word = next(x for x in numbers if numbers[x] == 260)
    tower = {
        "hf_tokenizer_name": "own",
        "tokenizer_kwargs": {"strip_sep_token": True},
    }
    texts, tokens, tokenizer = retokenize(
        "open_clip",
        tmp_path,
        {"sep_token": word},
        {"model_cfg": {"text_cfg": tower}},
    )
    assert (tokens == 260).any()
    np.testing.assert_array_equal(tokenizer(texts), tokens * (tokens != 260))


def test_a_model_in_half_precision_and_several_files(tmp_path):
    folder = copy_of("clip", tmp_path)
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {}
    for number, names in enumerate(np.array_split(sorted(arrays), 3), 1):
        file = f"model-{number:05d}-of-00003.safetensors"
        part = {str(n): arrays[n].astype("float16") for n in names}
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    index = json.dumps({"weight_map": index})
    (folder / "model.safetensors.index.json").write_text(index)
    vectors = to_numpy(
        text_from_checkpoint(folder)(expected_of("clip")["tokens"])
    )
    np.testing.assert_allclose(vectors, expected_of("clip")["text"], atol=0.01)


# ---------------------------------------------------------------- zero_shot


@pytest.fixture(scope="module")
def towers():
    return (
        keras_vit.from_checkpoint(GOLDEN / "clip"),
        load_text_encoder(GOLDEN / "clip"),
    )


def test_the_vectors_of_templates_are_averaged(towers):
    image, text = towers
    names, templates = ["cat", "dog"], ["a photo of a {}.", "two {}s", "{}"]
    model = zero_shot(image, names, templates, text=text)
    rows = []
    for name in names:
        vectors = text([template.format(name) for template in templates])
        mean = vectors.mean(axis=0)
        rows.append(mean / np.linalg.norm(mean))
    x = expected_of("clip")["x"]
    features = to_numpy(image(x))
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    logits = features @ np.transpose(rows) * text.model.config.logit_scale
    close(to_numpy(model.with_classifier_activation(None)(x)), logits)
    assert model.config.class_names == ("cat", "dog")
    renamed = {"n02084071": "dog", "n02121808": "cat"}
    other = zero_shot(image, renamed, templates, text=text)
    assert other.config.class_names == tuple(renamed)
    kernels = [m.get_layer("predictions").kernel for m in (model, other)]
    first, second = map(to_numpy, kernels)
    close(second, first[:, ::-1])


def test_the_bias_of_a_projection_of_images_is_kept(towers):
    text = towers[1]
    image = keras_vit.from_checkpoint(GOLDEN / "clip")
    image.get_layer("predictions").bias.assign(noise(8))
    x, names = expected_of("clip")["x"], ["a cat", "a dog"]
    features = to_numpy(image(x))
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    model = zero_shot(image, names, ["{}"], text=text)
    logits = features @ text(names).T * text.model.config.logit_scale
    close(to_numpy(model.with_classifier_activation(None)(x)), logits)


@pytest.mark.parametrize(
    "arguments, word",
    [
        ((["cat", "cat"],), "class_names"),
        (([],), "class_names"),
        (("cat",), "class_names"),
        ((["cat", 3],), "class_names"),
        (({"cat": 3},), "class_names"),
        ((["cat"], ["a photo"]), "templates"),
        ((["cat"], "a {}"), "templates"),
    ],
)
def test_wrong_arguments_are_named(arguments, word, towers):
    image, text = towers
    with pytest.raises(ValueError, match=word):
        zero_shot(image, *arguments, text=text)


def test_towers_that_do_not_belong_together(towers):
    image, text = towers
    with pytest.raises(ValueError, match="text"):
        zero_shot(image, ["cat"])
    with pytest.raises(ValueError, match="`model`"):
        zero_shot(image.with_num_classes(5), ["cat"], text=text)
    coded = image.with_image_size(image.config.image_size)
    coded.quantize("int8")
    with pytest.raises(ValueError, match="`model` is quantised; call"):
        zero_shot(coded, ["cat"], text=text)
    model = zero_shot(image, ["cat"], text=text)
    with pytest.raises(ValueError, match="`model`"):
        zero_shot(model, ["cat"], text=text)
    config = text.model.config
    for tokens in (
        [[0, config.vocabulary_size, config.end_token]],
        [[0, -1, config.end_token]],
        [[0, 1, config.end_token], [0, 1, 2]],  # One has no end.
    ):
        other = TextEncoder(text.model, lambda texts, x=tokens: np.array(x))
        with pytest.raises(ValueError, match="`tokenizer` must"):
            zero_shot(image, ["cat"], text=other)
    config = TextConfig(50, 8, 12, 1, 20, 2, output_size=8, end_token=3)
    unscaled = TextEncoder(TextTransformer(config), text.tokenizer)
    with pytest.raises(ValueError, match="logit_scale"):
        zero_shot(image, ["cat"], text=unscaled)
