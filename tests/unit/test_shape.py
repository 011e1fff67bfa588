"""What every part of the repository keeps to: short functions, and no import cycle between folders."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.unit.test_imports import PACKAGE, ROOT, SOURCES, imported

#: The most lines of a function, with its docstring.
LONGEST = 60


def long_functions() -> Iterator[str]:
    for folder in ("nsq", "benchmarks", "examples", "tests", "docs", ".ci"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if (node.end_lineno or 0) - node.lineno >= LONGEST:
                    yield f"{path.relative_to(ROOT)}: {node.name}"


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            yield from statements(child)


def test_no_function_is_longer_than_a_page() -> None:
    assert list(long_functions()) == []


def name_of(path: str) -> str:
    return ".".join(["nsq", *path.removesuffix(".py").removesuffix("__init__").split("/")]).rstrip(".")


def imports_between_folders() -> dict[str, set[str]]:
    """Return what each module imports; the modules of one folder that import each other count as one."""
    names = {name_of(path): path for path in SOURCES}
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        texts = set(imported(path, (PACKAGE / path).read_text(encoding="utf-8"))) - {"nsq.__version__"}
        wanted = {each if each in names else each.rpartition(".")[0] for each in texts}
        found[name] = (wanted & names.keys()) - {name}
    return found


def test_no_import_cycle_leaves_a_folder() -> None:
    found = imports_between_folders()
    while True:
        try:
            TopologicalSorter(found).prepare()
        except CycleError as error:
            cycle: list[str] = error.args[1]
            folders = {Path(path).parent for path in SOURCES if name_of(path) in cycle}
            assert len(folders) == 1, f"an import cycle: {' <- '.join(cycle)}"
            found = merged(found, cycle)
        else:
            return


def merged(found: dict[str, set[str]], cycle: list[str]) -> dict[str, set[str]]:
    one, others = cycle[0], set(cycle[1:]) - {cycle[0]}
    whole = {name: {one if each in others else each for each in wanted} for name, wanted in found.items()}
    for other in others:
        whole[one] |= whole.pop(other)
    whole[one].discard(one)
    return whole
