"""What the house rules read: the identifiers that a source file declares, and the sentences of every kind of file."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

LEVELS: Final = {"debug", "info", "warning", "error", "exception"}
"""Methods of loggers, whose first argument is a message."""
ROWS: Final = {
    "Metric",
    "Field",
    "Label",
    "LogMessage",
    "Attribute",
    "SpanRow",
    "_label",
    "_info",
    "_warning",
    "_error",
}
"""Rows of the telemetry tables, whose texts are `# HELP` of /metrics, and the meanings in docs/telemetry.md."""
_CODE: Final = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_GLOSSARY: Final = re.compile(r"^\|.*\|$\n?", re.MULTILINE)


@cache
def nodes_of(module: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a file, walked once for all rules: to walk takes longer than to look at a node."""
    return tuple(ast.walk(module))


def declared(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name of a function, parameter, variable or attribute that a module declares, with its line."""
    for node in nodes_of(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name, node.lineno


def sentences(tree: ast.Module, text: str) -> Iterator[str]:
    """Docstrings, also those of attributes, comments, log messages, help texts, error texts and meanings of metrics."""
    for node in nodes_of(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield docstring
            case ast.Raise(exc=ast.expr() as error):
                yield from _strings([error])
            case ast.Call(func=function):
                whole = _dotted(function)
                name = whole.rpartition(".")[2]
                yield from _strings(each.value for each in node.keywords if each.arg in {"help", "remedy", "epilog"})
                yield from _strings(node.args[:1] if name in LEVELS else node.args if name in ROWS else [])
                yield from _strings(node.args if whole.removesuffix(".of").endswith("Error") else [])
    yield from comments(io.StringIO(text).readline)


def _dotted(function: ast.expr) -> str:
    """The name of what is called, with the names before it; a call or subscript before it is left out."""
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
        case _:
            return ""


def comments(readline: Any) -> Iterator[str]:
    """The comments of a Python file, without directives for tools."""
    found = (token.string for token in tokenize.generate_tokens(readline) if token.type == tokenize.COMMENT)
    yield from (re.sub(r"(noqa|type: ignore|fmt|pragma)\S*", "", comment) for comment in found)


def _strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def prose(name: str, text: str) -> str:
    """The sentences of a file that is not Python: a page without its code, or the comments and texts of YAML.

    Of CONTRIBUTING.md without the glossary's table, which lists the words to avoid.
    """
    if name.endswith(".md"):
        page = _GLOSSARY.sub("", text) if name == "CONTRIBUTING.md" else text
        return re.sub(r"\]\([^)]*\)", "]", _CODE.sub("", page))
    if name.endswith((".yaml", ".yml")):
        texts = re.findall(r"(?:#|\b(?:summary|description|title|name|text|says|note|help):)(.*)", text)
        return _CODE.sub("", "\n".join(texts))
    return "\n".join(re.findall(r"(?:^|\s)(?:#|--|//)\s(.*)", text))


def without_code(texts: Iterable[str]) -> Iterator[str]:
    """The texts without names of code in backticks."""
    return (_CODE.sub("", text) for text in texts)
