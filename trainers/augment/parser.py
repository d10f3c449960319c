"""Parser for a line of operations, as `flip_lr|pad_crop(4)|mixup(alpha=0.2)`.

The line has the syntax of a Python expression: names and calls, separated by
`|`. The arguments of the calls are numbers, names, tuples of numbers, or None.
"""

import ast
import dataclasses
import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from keras_vit.tables import pick


class ArgumentError(ValueError):
    """An argument of an operation is out of range.

    Args:
        name: Name of the argument.
        rule: Completes the sentence "`name` must be ...".
        value: The received value.
    """

    def __init__(self, name: str, rule: str, value: float | None):
        received = f"{value:g}" if isinstance(value, float) else value
        super().__init__(
            f"`{name}` must be {rule}. Received: {name}={received}"
        )
        self.name = name


def require(condition: bool, name: str, rule: str, value: float | None):
    """Raise an ArgumentError unless `condition` holds.

    Args:
        condition: Whether the value is allowed.
        name: Name of the argument.
        rule: Completes the sentence "`name` must be ...".
        value: The received value.
    """
    if not condition:
        raise ArgumentError(name, rule, value)


def check_type(name: str, value, types: tuple[type, ...]):
    """Raise an ArgumentError unless `value` is of one of the types."""
    if type(value) in (str, tuple) and type(value) in types:
        return
    if value is None:
        require(type(None) in types, name, "a number", value)
    else:
        require(math.isfinite(value), name, "finite", value)
        require(abs(value) < 2**31, name, "of less than 32 bits", value)
        is_whole = isinstance(value, int)
        require(float in types or is_whole, name, "a whole number", value)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of operations, whose errors point at their place in the text.

    Args:
        text: The operations.
        argument: Name of the argument that contains the text, for errors.
    """

    text: str
    argument: str

    def fail(self, message: str, position: int) -> NoReturn:
        """Raise a ValueError that points at a position of the text.

        Args:
            message: The message of the error.
            position: Number of bytes of the text before the error.
        """
        column = len(self.text.encode()[:position].decode(errors="ignore"))
        raise ValueError(
            f"`{self.argument}`: {message}\n  {self.text}\n  {' ' * column}^"
        ) from None


@dataclasses.dataclass(frozen=True)
class Call:
    """An operation in a line.

    Args:
        line: The line of operations.
        name: Name of the operation.
        node: The syntax tree of the operation, a name or a call.
    """

    line: Line
    name: str
    node: ast.Name | ast.Call

    def fail(self, message: str) -> NoReturn:
        """Raise a ValueError that points at the operation."""
        self.line.fail(message, self.node.col_offset)

    def make(self, factories: Mapping[str, Callable], **choices: Any) -> Any:
        """Call the factory of the operation, and return its result.

        Args:
            factories: Functions, by the name of the operation. The text
                cannot set their keyword-only parameters.
            **choices: Values of keyword-only parameters; each factory gets
                those that it has.

        Raises:
            ValueError: If the operation is unknown or has wrong arguments.
        """
        try:
            factory = pick(factories, self.name, "operation")
        except ValueError as error:
            self.fail(str(error))
        known = inspect.signature(factory, eval_str=True).parameters
        if any(
            p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in known.values()
        ):
            self.fail(
                f"{self.name} must name its arguments. Received: "
                f"{self.name}{inspect.signature(factory)}"
            )
        signature = inspect.Signature(
            [p for p in known.values() if p.kind is not p.KEYWORD_ONLY]
        )
        nodes = self._bind(signature)
        types = {
            name: ANY
            if p.annotation is p.empty
            else typing.get_args(p.annotation) or (p.annotation,)
            for name, p in signature.parameters.items()
        }
        values = {
            name: self._read_value(node, types[name])
            for name, node in nodes.items()
        }
        choices = {n: choices[n] for n in choices.keys() & known.keys()}
        try:
            for name, value in values.items():
                check_type(name, value, types[name])
            return factory(**values, **choices)
        except ArgumentError as error:
            node = nodes.get(error.name, self.node)
            message = f"{self.name}{signature}: {error}"
            self.line.fail(message, node.col_offset)

    def _bind(self, signature):
        """Return the nodes of the arguments, by the name of the parameter."""
        arguments = getattr(self.node, "args", [])
        keywords = getattr(self.node, "keywords", [])
        named = {keyword.arg or "**": keyword for keyword in keywords}
        try:
            if len(named) < len(keywords):
                raise TypeError("an argument is given twice")
            return signature.bind(*arguments, **named).arguments
        except TypeError as error:
            received = ast.unparse(self.node)
            self.fail(f"{self.name}{signature}: {error}. Received: {received}")

    def _read_value(self, node, types):
        value = node.value if isinstance(node, ast.keyword) else node
        if str in types and isinstance(value, ast.Name):
            return value.id
        try:
            literal = ast.literal_eval(value)
        except ValueError:
            literal = ...
        is_row = tuple in types and isinstance(literal, tuple)
        found = {type(number) for number in (literal if is_row else [literal])}
        if found - {int, float, type(None)}:
            self.line.fail(
                f"arguments of {self.name} must be numbers or None. "
                f"Received: {ast.unparse(value)}",
                node.col_offset,
            )
        return literal


# What an argument without an annotation may be.
ANY = (int, float, str, tuple, type(None))


def read_calls(text: str, argument: str) -> list[Call]:
    """Return the operations in a line.

    Args:
        text: Operations separated by `|`; may have several lines.
        argument: Name of the argument that contains `text`, for errors.

    Raises:
        ValueError: If `text` is not a line of operations. The message points
            at the error.
    """
    line = Line(re.sub(r"\s", " ", text).strip(), argument)
    if not line.text:
        return []
    rule = "must be operations separated by '|', as in flip_lr|pad_crop(4)"
    if "#" in line.text:  # Python would treat the rest as a comment.
        position = len(line.text.partition("#")[0].encode())
        line.fail(f"{rule}. Received: '#'", position)
    try:
        node = ast.parse(line.text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        position = max((getattr(error, "offset", None) or 1) - 1, 0)
        position = len(line.text[:position].encode())
        line.fail(f"{rule}. Received: {error.args[0]}", position)
    operands = []  # The last one first: a | b | c is (a | b) | c.
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        operands.append(node.right)
        node = node.left
    calls = []
    for operand in (node, *reversed(operands)):
        function = operand.func if isinstance(operand, ast.Call) else operand
        if not isinstance(function, ast.Name):
            received = ast.unparse(operand)
            line.fail(f"{rule}. Received: {received}", operand.col_offset)
        calls.append(Call(line, function.id, operand))
    return calls
