"""Imports the package so that it runs in the simulation.

It gets stand-ins for the modules that touch the outside, a place to preempt before each statement of a
function, and sets that keep the order of insertion: the order of a real set's items depends on addresses and
on PYTHONHASHSEED, so a run could not be repeated.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import itertools
import marshal
import os
import sys
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

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self))}}}"

    __hash__ = MutableSet._hash  # frozensets are keys

    def add(self, item: T) -> None:
        self._items[item] = None

    def discard(self, item: T) -> None:
        self._items.pop(item, None)

    def copy(self) -> Set[T]:
        return Set(self)

    def update(self, *others: Iterable[T]) -> None:
        self._items.update(dict.fromkeys(itertools.chain(*others)))

    def union(self, *others: Iterable[T]) -> Set[T]:
        return Set(itertools.chain(self, *others))

    def intersection(self, other: Iterable[object]) -> Set[T]:
        other = set(other)
        return Set(item for item in self if item in other)

    __and__ = intersection  # MutableSet's has the order of ``other``

    def difference(self, other: Iterable[object]) -> Set[T]:
        other = set(other)
        return Set(item for item in self if item not in other)

    def difference_update(self, other: Iterable[T]) -> None:
        self -= Set(other)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Transform(ast.NodeTransformer):
    def __init__(self, stand_ins: Iterable[str]) -> None:
        self.sites: list[tuple[str, int]] = []
        """The function and the line of each statement before which a thread can be preempted."""
        self._stand_ins = stand_ins
        self._scopes: list[str] = []

    # Stand-ins.

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        return [
            _parsed(f"{alias.asname or alias.name} = _simulated[{alias.name!r}]", node)
            if alias.name in self._stand_ins
            else ast.copy_location(ast.Import([alias]), node)
            for alias in node.names
        ]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | list[ast.stmt]:
        if node.level or node.module not in self._stand_ins:
            return node
        return [
            _parsed(f"{alias.asname or alias.name} = _simulated[{node.module!r}].{alias.name}", node)
            for alias in node.names
        ]

    # Sets.

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _set_type(node) if node.id in ("set", "frozenset") else node

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

    # Preemption.

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, _SCOPES):
            return super().visit(node)
        self._scopes.append(node.name)
        self.generic_visit(node)
        if not isinstance(node, ast.ClassDef):
            self._interrupt(node)
        self._scopes.pop()
        return node

    def _interrupt(self, node: ast.AST) -> None:
        """Put a place for a preemption before each statement in the blocks of a function or statement."""
        for name in ("body", "orelse", "finalbody"):
            block: list[ast.stmt] = getattr(node, name, [])
            block[:] = list(self._with_places(block))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self._interrupt(part)

    def _with_places(self, block: list[ast.stmt]) -> Iterator[ast.stmt]:
        for number, statement in enumerate(block):
            if isinstance(statement, _SCOPES):
                yield statement
                continue
            docstring = number == 0 and isinstance(statement, ast.Expr) and _is_text(statement.value)
            if not (docstring or isinstance(statement, (ast.Global, ast.Nonlocal, ast.Pass))):
                site = len(self.sites)
                self.sites.append((".".join(self._scopes), statement.lineno))
                call = f"_statement(__name__, {site}, _marked[{site}])"
                yield _parsed(f"(_due() or _marked[{site}]) and {call}", statement)
            yield statement
            self._interrupt(statement)


def _parsed(text: str, where: ast.stmt) -> ast.stmt:
    """Parse a statement, and put it on the line of another."""
    made = ast.parse(text).body[0]
    for node in ast.walk(made):
        ast.copy_location(node, where)
    return made


def _set_type(where: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Name("_Set", ast.Load()), where)


def _as_set(items: ast.expr, where: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(_set_type(where), [ast.copy_location(items, where)], []), where)


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


sites: dict[str, list[tuple[str, int]]] = {}
"""By module: the function and line of each place where a thread can be preempted."""
_modules: dict[str, ModuleType] = {}


class _Importer(importlib.machinery.SourceFileLoader):
    """Imports one module of the package. Its code is kept in ``cache``."""

    stand_ins: dict[str, Any]
    cache: Path

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        parts = [source, self.path.encode(), Path(__file__).read_bytes(), sys.version.encode()]
        cached = self.cache / f"{fullname}.{blake2b(b'|'.join(parts), digest_size=12).hexdigest()}"
        if not cached.is_file():
            transform = _Transform(self.stand_ins)
            code = compile(transform.visit(ast.parse(source)), self.path, "exec", dont_inherit=True)
            self.cache.mkdir(parents=True, exist_ok=True)
            fresh = cached.with_suffix(f".{os.getpid()}.new")
            fresh.write_bytes(marshal.dumps((transform.sites, code)))
            fresh.replace(cached)
        sites[fullname], code = marshal.loads(cached.read_bytes())
        return code

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        module.__dict__.update(
            _simulated=self.stand_ins,
            _Set=Set,
            _due=lambda: 0,
            _marked=bytearray(len(sites[module.__name__])),
            _statement=scheduler.statement,
            open=self.stand_ins["os"].open_file,
        )
        _modules[module.__name__] = module
        exec(code, module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Importer(name, spec.loader.path)
        return spec


def install(stand_ins: dict[str, Any], cache: Path) -> None:
    """From now on import the package for the simulation. It must not have been imported before."""
    loaded = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    assert not loaded, f"imported before the simulation was installed: {loaded}"
    _Importer.stand_ins, _Importer.cache = stand_ins, cache
    sys.meta_path.insert(0, _Finder())


def begin_preempting() -> None:
    """Have every statement of the package be a place for a preemption, as often as the scheduler says."""
    due = scheduler.due()
    for module in _modules.values():
        module.__dict__["_due"] = due.__next__


def mark(module: str, site: int, on: bool = True) -> None:
    """Have the scheduler asked whenever a thread comes to this statement."""
    _modules[module].__dict__["_marked"][site] = on


def site_of(function: str, beginning: str) -> tuple[str, int]:
    """Return the first statement of ``module:Class.method`` whose line begins like this. The module is
    without the package's name.
    """
    name, _, owner = function.partition(":")
    module = f"{PACKAGE}.{name}"
    source = Path(str(_modules[module].__file__)).read_text().splitlines()
    for site, (scope, line) in enumerate(sites[module]):
        if scope == owner and source[line - 1].strip().startswith(beginning):
            return module, site
    raise LookupError(f"{function} has no line that begins with {beginning!r}")


def knob(module: str, name: str, value: object) -> None:
    """Give a constant of a module of the package another value."""
    full = f"{PACKAGE}.{module}"
    if not hasattr(_modules[full], name):
        raise LookupError(f"{full} has no {name}")
    setattr(_modules[full], name, value)
