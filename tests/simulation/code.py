"""Imports the package so that it runs in the simulation.

It gets stand-ins for the modules that touch the outside, a place to preempt before each statement of a
function, and sets that keep the order of insertion: the order of a real set's items depends on addresses and
on PYTHONHASHSEED, so a run could not be repeated.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator, MutableSet, Sequence
from hashlib import blake2b
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from tests.simulation.scheduler import scheduler

T = TypeVar("T")
PACKAGE = "nsq"


class Set(MutableSet[T]):
    """A set that iterates in the order of insertion, also after operations with other sets."""

    __slots__ = ("_items", "__weakref__")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: dict[T, None] = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    __hash__ = MutableSet._hash  # frozensets are keys

    def add(self, item: T) -> None:
        self._items[item] = None

    def discard(self, item: T) -> None:
        self._items.pop(item, None)

    def copy(self) -> Set[T]:
        return Set(self)

    def update(self, items: Iterable[T]) -> None:
        self._items.update(dict.fromkeys(items))

    def union(self, *others: Iterable[T]) -> Set[T]:
        return Set(itertools.chain(self, *others))

    def intersection(self, other: Iterable[object]) -> Set[T]:
        other = set(other)
        return Set(item for item in self if item in other)

    __and__ = intersection  # MutableSet's has the order of ``other``
    difference = MutableSet.__sub__
    difference_update = MutableSet.__isub__


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Transform(ast.NodeTransformer):
    def __init__(self) -> None:
        #: The function and the line of each statement before which a thread can be preempted.
        self.sites: list[tuple[str, int]] = []
        self._scopes: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = []

    def visit_Set(self, node: ast.Set) -> ast.expr:
        self.generic_visit(node)
        return _as_set(ast.Tuple(node.elts, ast.Load()), node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.expr:
        self.generic_visit(node)
        return _as_set(ast.GeneratorExp(node.elt, node.generators), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if _is_keys(node.left) or _is_keys(node.right):  # ``a.keys() - b.keys()`` is a set
            node.left = _as_set(node.left, node.left)
        return node

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _SCOPES):
            self._scopes.append(node)
        if self._scopes and not isinstance(self._scopes[-1], ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                if isinstance(block := getattr(node, name, None), list):
                    block[:] = list(self._with_places(block))
        made = super().visit(node)
        if isinstance(node, _SCOPES):
            self._scopes.pop()
        return made

    def _with_places(self, block: list[ast.stmt]) -> Iterator[ast.stmt]:
        """Put a place for a preemption before each statement of a block."""
        for statement in block:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not (is_text or isinstance(statement, (*_SCOPES, ast.Global, ast.Nonlocal, ast.Pass))):
                site = len(self.sites)
                calls = f"_due() and _preempt()\n_marked[{site}] and _hold(__name__, {site})"
                self.sites.append((".".join(scope.name for scope in self._scopes), statement.lineno))
                for made in ast.parse(calls).body:
                    for node in ast.walk(made):  # for tracebacks
                        ast.copy_location(node, statement)
                    yield made
            yield statement


def _as_set(items: ast.expr, where: ast.expr) -> ast.expr:
    made = ast.Call(ast.Name("set", ast.Load()), [ast.copy_location(items, where)], [])
    return ast.fix_missing_locations(ast.copy_location(made, where))


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads one module of the package, with ``_sites``, ``_marked``, and built-ins of its own."""

    builtins: dict[str, Any]

    def source_to_code(self, data: Any, path: Any, *, _optimization: int = -1) -> CodeType:
        transform = _Transform()
        tree = transform.visit(ast.parse(data))
        names = f"_sites = {transform.sites}\n_marked = bytearray({len(transform.sites)})"
        future = sum(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in tree.body)
        start = future + (ast.get_docstring(tree) is not None)
        tree.body[start:start] = ast.parse(names).body
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self.builtins
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


def install(stand_ins: dict[str, Any]) -> None:
    """From now on import the package for the simulation. It must not have been imported before."""
    loaded = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    assert not loaded, f"imported before the simulation was installed: {loaded}"

    def import_(name: str, *arguments: Any, **options: Any) -> Any:
        return stand_ins[name] if name in stand_ins else builtins.__import__(name, *arguments, **options)

    _Loader.builtins = vars(builtins) | {"__import__": import_, "open": stand_ins["os"].open_file}
    _Loader.builtins |= {
        "set": Set,
        "frozenset": Set,
        "_due": lambda: 0,
        "_preempt": scheduler.preempt,
        "_hold": scheduler.hold,
    }
    # Compiled modules of the package must not be taken for those of programs, nor of another transform.
    version = blake2b(Path(__file__).read_bytes(), digest_size=12).hexdigest()
    sys.pycache_prefix = f"{tempfile.gettempdir()}/nsq-simulation-code/{version}"
    sys.meta_path.insert(0, _Finder())


def begin_preempting() -> None:
    """Have every statement of the package be a place for a preemption, as often as the scheduler says."""
    _Loader.builtins["_due"] = scheduler.due().__next__


def sites() -> dict[str, list[tuple[str, int]]]:
    """Return the function and the line of each place where a thread can be preempted, by module."""
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] == PACKAGE)
    return {name: sys.modules[name]._sites for name in loaded}  # type: ignore[attr-defined]


def mark(module: str, site: int, on: bool = True) -> None:
    """Have the scheduler asked whenever a thread comes to this statement."""
    sys.modules[module]._marked[site] = on  # type: ignore[attr-defined]


def site_of(function: str, beginning: str) -> tuple[str, int]:
    """Return the first statement of ``module:Class.method`` whose line begins like this. The module is
    without the package's name.
    """
    name, _, owner = function.partition(":")
    module = f"{PACKAGE}.{name}"
    source = Path(str(sys.modules[module].__file__)).read_text().splitlines()
    for site, (scope, line) in enumerate(sites()[module]):
        if scope == owner and source[line - 1].strip().startswith(beginning):
            return module, site
    raise LookupError(f"{function} has no line that begins with {beginning!r}")


def knob(module: str, name: str, value: object) -> None:
    """Give a constant of a module of the package another value."""
    names = vars(sys.modules[f"{PACKAGE}.{module}"])
    assert name in names, f"{module} has no {name}"
    names[name] = value
