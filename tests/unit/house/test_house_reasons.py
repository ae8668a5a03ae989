"""What silences a check, or catches every exception, states its reason beside it."""

import ast
import re
from collections.abc import Iterator
from typing import Any

_SILENCED = re.compile(r"#\s*(?:noqa|type:\s*ignore)(?::\s*[A-Z0-9, ]+|\[[^\]]*\])?")
_ALL = {"Exception", "BaseException"}


def test_suppression_of_a_check_states_its_reason(product: list[Any]) -> None:
    """After `noqa` and `type: ignore` there is a further comment, and both name what they silence."""
    silent = [f"{source.name}:{number}" for source in product for number in unexplained(source.text)]
    assert silent == []


def test_a_handler_of_every_exception_raises_or_states_its_reason(product: list[Any]) -> None:
    """`except Exception` raises again, or has a comment in its first lines."""
    silent = [f"{source.name}:{number}" for source in product for number in swallowing(source.text, source.tree)]
    assert silent == []


def unexplained(text: str) -> Iterator[int]:
    for number, line in enumerate(text.splitlines(), 1):
        match = _SILENCED.search(line)
        if match and not ("#" in line[match.end() :] and match[0].rstrip(" ,")[-1:] not in {"a", "e"}):
            yield number


def swallowing(text: str, tree: ast.AST) -> Iterator[int]:
    lines = text.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler) or not catches_all(node):
            continue
        raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        has_reason = any("# " in line.replace("# noqa", "") for line in lines[node.lineno - 1 : node.lineno + 1])
        if not raises and not has_reason:
            yield node.lineno


def catches_all(node: ast.ExceptHandler) -> bool:
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return node.type is None or any(isinstance(one, ast.Name) and one.id in _ALL for one in caught)


def test_both_are_found() -> None:
    """With and without a reason."""
    bare = "x = y  # noqa: S101\nx = y  # type: ignore[attr]\nx = y  # noqa\n"
    assert list(unexplained(bare)) == [1, 2, 3]
    assert list(unexplained("x = y  # noqa: S101  # the reason\nx = y  # type: ignore[attr]  # the reason\n")) == []
    swallowed = "try:\n    x()\nexcept Exception:\n    pass\n"
    assert list(swallowing(swallowed, ast.parse(swallowed))) == [3]
    for handled in ("    raise\n", "    # the reason\n    pass\n"):
        text = f"try:\n    x()\nexcept Exception:\n{handled}"
        assert list(swallowing(text, ast.parse(text))) == []
