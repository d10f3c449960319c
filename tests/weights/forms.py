"""Checkpoints rewritten into the other forms that are found in the wild."""

import re

import numpy as np


def wrapped(arrays, prefix):
    return {prefix + key: value for key, value in arrays.items()}


def unwrapped(arrays, prefix="params/"):
    return {key.removeprefix(prefix): v for key, v in arrays.items()}


def renamed(arrays, *changes):
    new = {}
    for key, value in arrays.items():
        for pattern, replacement in changes:
            key = re.sub(pattern, replacement, key)
        new[key] = value
    return new


def with_training_state(arrays):
    """As Flax' optimizer, SAM files among them, writes itself."""
    state = {"opt/state/step": np.int64(7)}
    for key, value in arrays.items():
        state[f"opt/target/{key}"] = value
        state[f"opt/state/param_states/{key}/grad_ema"] = value + 1
    return state


def with_state_of_the_code(arrays):
    """As `save_checkpoint` of Flax writes (parameters, optimizer, step)."""
    state = {"1/1/1/count": np.int32(7), "2": np.int64(7)}
    for key, value in arrays.items():
        state[f"1/1/0/trace/{key}"] = value + 1
    return {**wrapped(arrays, "0/"), **state}


def two_towers(arrays):
    text = {"params/txt/head/kernel": np.ones((4, 5), "float32")}
    scalars = {"params/t": np.float32(1), "params/b": np.float32(2)}
    return {**wrapped(arrays, "params/img/"), **text, **scalars}


def as_bfloat16(arrays):
    """The upper halves of the floats, as NumPy stores a type it has not."""
    return {
        key: (value.astype("<f4").view("<u4") >> 16)
        .astype("<u2")
        .view("V2")
        .reshape(value.shape)
        for key, value in arrays.items()
    }


def rounded_to_bfloat16(arrays):
    """The same numbers as float32."""
    return {
        key: (value.view("<u4") & 0xFFFF0000).view("<f4")
        for key, value in arrays.items()
    }


def with_old_group_norms(arrays):
    """Scales and biases as (1, 1, 1, C), as Flax stored them until 2021."""
    return {
        key: value.reshape(1, 1, 1, -1)
        if re.search(r"(^|/)gn(\d|_root|_proj)/", key)
        else value
        for key, value in arrays.items()
    }


def with_class_slot(arrays, slot):
    """The position table of big_vision's oldest files."""
    table = arrays["params/pos_embedding"]
    slot = slot.reshape(1, 1, -1)
    return {
        **arrays,
        "params/pos_embedding": np.concatenate([slot, table], axis=1),
    }


def deeper(arrays, depth):
    """Repeat the blocks, each scaled, so that their order matters."""
    new = {}
    for key, value in arrays.items():
        found = re.match(r"(.*encoderblock_)(\d+)(/.*)", key)
        if not found:
            new[key] = value
        elif found[2] == "0":
            for index in range(depth):
                scale = np.float32(1 + index / depth)
                new[f"{found[1]}{index}{found[3]}"] = value * scale
    return new
