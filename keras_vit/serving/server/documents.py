"""Reading and printing JSON as TF Serving does."""

import json
import re

from keras_vit.serving.server.refusals import invalid

MOST_PRINTED = 256  # Characters of a value in an error.


def read_document(body: bytes) -> dict:
    """Return the JSON object at the start of a request.

    NaN and Infinity are numbers, and what follows the object is ignored. Bytes
    that are not UTF-8 become surrogates; `to_bytes` turns them back.

    Raises:
        Refusal: If there is none.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    text = body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    start = re.match(r"[ \t\n\r]*", text).end()
    if start == len(text):
        raise invalid(f"{PARSE_ERROR}The document is empty. at offset: {start}")
    try:
        value, _ = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        reason = PARSE_ERRORS.get(error.msg.split(":")[0], f"{error.msg}.")
        offset = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise invalid(f"{PARSE_ERROR}{reason} at offset: {offset}") from None
    except RecursionError:
        raise invalid(f"{PARSE_ERROR}Nested too deeply.") from None
    except ValueError:  # More digits than Python converts.
        raise invalid(f"{PARSE_ERROR}{TOO_BIG}") from None
    if not isinstance(value, dict):
        raise complain(value, "Is not object")
    return value


def complain(value, text: str):
    """Return the error that begins with a value."""
    return invalid(f"JSON Value: {print_value(value)} {text}")


def print_value(value) -> str:
    """Return a value as JSON, cut off where it gets long."""
    text = ""
    try:
        for part in json.JSONEncoder(indent=4).iterencode(value):
            text += part[: MOST_PRINTED + 1]
            if len(text) > MOST_PRINTED:
                return f"{text[:MOST_PRINTED]}..."
    except RecursionError:
        text += "..."
    return text


def name_type(value) -> str:
    """Return RapidJSON's name for the type of a value.

    Example:
        >>> name_type(True), name_type([1]), name_type(None)
        ('True', 'Array', 'Null')
    """
    if isinstance(value, bool) or value is None:
        return {None: "Null"}.get(value, str(value))
    return {dict: "Object", list: "Array", str: "String"}.get(
        type(value), "Number"
    )


def to_bytes(text: str) -> bytes:
    """Return a string of a document as it was sent.

    Raises:
        Refusal: If it contains half a surrogate pair.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise invalid(
            f"{PARSE_ERROR}The surrogate pair in string is invalid."
        ) from None


PARSE_ERROR = "JSON Parse error: "
TOO_BIG = "Number too big to be stored in double."
# RapidJSON's texts, by those of Python.
PARSE_ERRORS = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": (
        "Missing a name for object member."
    ),
    "Illegal trailing comma before end of object": (
        "Missing a name for object member."
    ),
    "Expecting '": "Missing a colon after a name of object member.",
    "Expecting ',' delimiter": "Missing a comma, } or ].",
    "Unterminated string starting at": (
        "Missing a closing quotation mark in string."
    ),
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid control character at": "Invalid encoding in string.",
}
