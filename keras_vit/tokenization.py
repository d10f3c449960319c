"""Tokenizer: from texts to the tokens of a text tower.

Its files are beside the weights: `tokenizer.json`, which the package
`tokenizers` reads, or the `spiece.model` of SigLIP, which the package
`sentencepiece` reads.
"""

import functools
import html
import pathlib
import re
import string
from collections.abc import Callable, Iterable

import numpy as np

from keras_vit.errors import import_packages
from keras_vit.weights.containers import errors_name, read_json, refuse_text

TOKENIZER, PIECES = "tokenizer.json", "spiece.model"
SETTINGS, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
PUNCTUATION = str.maketrans("", "", string.punctuation)
# The token that fills up a text, of a class of transformers whose files need
# not state it.
FILLS = {
    "CLIPTokenizer": "<|endoftext|>",
    "SiglipTokenizer": "</s>",
    "GemmaTokenizer": "<pad>",
    "Siglip2Tokenizer": "<pad>",
    "XLMRobertaTokenizer": "<pad>",
    "T5Tokenizer": "<pad>",
}
# Classes that fill it up from the left unless their files state otherwise.
LEFT = ("GemmaTokenizer", "Siglip2Tokenizer")
# Classes that add tokens by their own code, whatever `add_eos_token` is.
OWN_ENDS = ("CLIPTokenizer", "XLMRobertaTokenizer")
WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"  # In SentencePiece.


class Tokenizer:
    """Makes tokens of texts, all of the same number.

    Args:
        encode: Returns the tokens of a text, with those that begin and end it,
            cut to `context_length` before the end.
        context_length: Number L of tokens of a text.
        fill: The token that fills it up.
        fills_left: Whether those come before the text.
        clean: Changes a text first.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        context_length: int,
        fill: int = 0,
        fills_left: bool = False,
        clean: Callable[[str], str] = str,
    ):
        self.encode = encode
        self.context_length = context_length
        self.fill = fill
        self.fills_left = fills_left
        self.clean = clean

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """Return the tokens of texts, (N, L), int32."""
        rows = [self.encode(self.clean(text)) for text in texts]
        tokens = np.full((len(rows), self.context_length), self.fill, "int32")
        for row, found in zip(tokens, rows):
            if self.fills_left:
                row[len(row) - len(found) :] = found
            else:
                row[: len(found)] = found
        return tokens


def read_tokenizer(
    folder: pathlib.Path, about: dict, context_length: int
) -> Tokenizer:
    """Return the tokenizer in the folder of a model, as its library uses it.

    SigLIP learned from texts in lower case without punctuation, and SigLIP 2
    from texts in lower case: SiglipTokenizer and Siglip2Tokenizer of
    transformers change texts so, and OpenCLIP does what `tokenizer_kwargs` say.
    A GemmaTokenizer of SigLIP 2 is treated as a Siglip2Tokenizer.

    Args:
        folder: The folder.
        about: The configuration of the model, config.json or
            open_clip_config.json.
        context_length: Number L of tokens of a text.

    Raises:
        ValueError: If the folder has no such files, or they are damaged or not
            supported.
    """
    settings = {}
    for name in (SPECIAL, SETTINGS):
        if (folder / name).is_file():
            settings |= read_json(folder / name)
    kind = str(settings.get("tokenizer_class", "")).removesuffix("Fast")
    is_open_clip = "model_cfg" in about
    has_pieces = (folder / PIECES).is_file() and not is_open_clip
    path = folder / (PIECES if has_pieces else TOKENIZER)
    if not path.is_file():
        raise ValueError(
            f"{folder} has no tokenizer: it must hold {TOKENIZER}, or {PIECES} "
            "of SigLIP"
        )
    with errors_name(path):
        if has_pieces:
            refuse_text(path, "tokenizer")
            return _read_pieces(path, settings, context_length)
        refuse_text(path, "JSON")
        read = functools.partial(_read_tokenizers, path, settings, kind)
        if is_open_clip:
            return _as_open_clip(read, about, context_length)
        model_type = about.get("model_type")
        is_siglip_2 = model_type == "siglip2" or (
            model_type == "siglip" and kind in LEFT
        )
        tokenizer = read(context_length, lowers=is_siglip_2)
        if kind == "SiglipTokenizer":
            tokenizer.clean = functools.partial(_canonical, settings)
        return tokenizer


# ------------------------------------------------------------ changes of texts


def _canonical(settings, text) -> str:
    """Return a text as SiglipTokenizer of transformers changes it."""
    if settings.get("do_lower_case", True):
        text = text.lower()
    return re.sub(r"\s+", " ", text.translate(PUNCTUATION)).strip()


def _clean_for_open_clip(text) -> str:
    """Return a text without errors of encoding, entities and extra spaces."""
    text = _load("ftfy").fix_text(text)
    return " ".join(html.unescape(html.unescape(text)).split())


# What OpenCLIP does with texts, by the names in its configuration.
CLEANERS = {
    "whitespace": _clean_for_open_clip,
    "lower": lambda text: _clean_for_open_clip(text).lower(),
    "canonicalize": lambda text: " ".join(
        _clean_for_open_clip(text)
        .replace("_", " ")
        .translate(PUNCTUATION)
        .lower()
        .split()
    ),
}


def _as_open_clip(read, about, context_length) -> Tokenizer:
    """Return the tokenizer of an OpenCLIP model.

    Source: `SimpleTokenizer` and `HFTokenizer` of open_clip 3.3.
    """
    _load("ftfy")  # Before the first text.
    tower = about["model_cfg"]["text_cfg"]
    is_own = not tower.get("hf_tokenizer_name")
    options = {
        "clean": "lower" if is_own else "whitespace",
        **(tower.get("tokenizer_kwargs") or {}),
    }
    clean, strip = options.pop("clean"), options.pop("strip_sep_token", False)
    if clean not in CLEANERS or any(options.values()):
        raise ValueError(
            "its configuration has tokenizer_kwargs="
            f"{tower['tokenizer_kwargs']!r}, which is not read"
        )
    tokenizer = read(context_length, strips=strip)
    tokenizer.clean = CLEANERS[clean]
    if is_own:
        tokenizer.fill = 0
    return tokenizer


# -------------------------------------------------------------------- the files


def _load(name):
    """Return a package of the extra `text`."""
    [module] = import_packages("The tokenizer", [name])
    return module


def _word(settings, name, default=None):
    """Return a token in the files of transformers, a text or a description."""
    word = settings.get(name) or default  # It may be null.
    return word.get("content") if isinstance(word, dict) else word


def _read_tokenizers(
    path, settings, kind, context_length, lowers=False, strips=False
) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`.

    It puts texts in lower case first if it `lowers`, and if it `strips`, the
    token that separates texts is 0.
    """
    tokenizers = _load("tokenizers")
    normalizers, processors = tokenizers.normalizers, tokenizers.processors
    inner = tokenizers.Tokenizer.from_file(str(path))
    filling = inner.padding or {}
    inner.no_padding()

    def find(name, default=None):
        word = _word(settings, name, default)
        token = None if word is None else inner.token_to_id(word)
        if token is None:
            raise ValueError(f"there is no {name}, {word!r}")
        return token

    if lowers:
        before = [normalizers.Lowercase()]
        after = [inner.normalizer] if inner.normalizer else []
        inner.normalizer = normalizers.Sequence([*before, *after])
    ends = [settings.get(f"add_{name}_token") for name in ("bos", "eos")]
    if kind not in OWN_ENDS and ends != [None, None]:
        words = [
            _word(settings, f"{name}_token") if is_added else None
            for name, is_added in zip(("bos", "eos"), ends)
        ]
        inner.post_processor = processors.TemplateProcessing(
            single=" ".join(filter(None, (words[0], "$A", words[1]))),
            special_tokens=[
                (word, inner.token_to_id(word)) for word in words if word
            ],
        )
    inner.enable_truncation(context_length)
    if filling and not settings.get("pad_token"):
        fill = filling["pad_id"]
    else:
        fill = find("pad_token", FILLS.get(kind))
    side = settings.get("padding_side") or filling.get("direction")
    side = side or ("left" if kind in LEFT else "right")
    stripped = find("sep_token") if strips else None

    def encode(text):
        tokens = inner.encode(text).ids
        return [0 if token == stripped else token for token in tokens]

    return Tokenizer(encode, context_length, fill, side == "left")


def _read_pieces(path, settings, context_length) -> Tokenizer:
    """Return the tokenizer of a `spiece.model`, as SiglipTokenizer uses it.

    Source: `SiglipTokenizer` of transformers 5.23.
    """
    package = _load("sentencepiece")
    pieces = package.SentencePieceProcessor(model_file=str(path))
    words = [
        _word(settings, f"{name}_token", default)
        for name, default in (
            ("unk", "<unk>"),
            ("eos", "</s>"),
            ("pad", "</s>"),
        )
    ]
    special = {word: pieces.piece_to_id(word) for word in words}
    for word, token in special.items():
        if pieces.id_to_piece(token) != word:
            raise ValueError(f"there is no token {word!r}")
    unknown, end, fill = words[0], special[words[1]], special[words[2]]
    # Else SentencePiece would remove the start of the first word.
    count = len(pieces.encode(unknown))
    pattern = "|".join(rf"\s*{re.escape(word)}\s*" for word in special)

    def encode(text):
        found, text = [], WORD_START + text.replace(WORD_START, " ")
        for part in re.split(f"({pattern})", text):
            if part.strip() in special:
                if found == [pieces.piece_to_id(WORD_START)]:
                    found = []
                found.append(special[part.strip()])
            elif part:
                part = _canonical(settings, part)
                found += pieces.encode(unknown + part)[count:]
        found = found[: context_length - 1]
        return found if found[-1:] == [end] else [*found, end]

    side = settings.get("padding_side", "right")
    return Tokenizer(encode, context_length, fill, side == "left")
