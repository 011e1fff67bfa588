"""Imports the package so that it runs in the simulation.

It gets stand-ins for the modules that touch the outside, a place to preempt before each statement of a
function, and sets that keep the order of insertion: the order of a real set's items depends on addresses and
on PYTHONHASHSEED, so a run could not be repeated.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import os
import sys
from collections.abc import Callable, Iterable, Iterator, MutableSet, Sequence
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
        return f"{{{', '.join(map(repr, self._items))}}}"

    __hash__ = MutableSet._hash  # frozensets are keys

    def add(self, item: T) -> None:
        self._items[item] = None

    def discard(self, item: T) -> None:
        self._items.pop(item, None)

    def copy(self) -> Set[T]:
        return Set(self._items)

    def update(self, *others: Iterable[T]) -> None:
        for other in others:
            self._items.update(dict.fromkeys(other))

    def union(self, *others: Iterable[T]) -> Set[T]:
        result = self.copy()
        result.update(*others)
        return result

    def intersection(self, other: Iterable[object]) -> Set[T]:
        other = set(other)
        return Set(item for item in self._items if item in other)

    __and__ = intersection  # MutableSet's has the order of ``other``

    def difference(self, other: Iterable[object]) -> Set[T]:
        other = set(other)
        return Set(item for item in self._items if item not in other)

    def difference_update(self, other: Iterable[T]) -> None:
        for item in list(other):
            self.discard(item)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Transform(ast.NodeTransformer):
    def __init__(self, stand_ins: Iterable[str]) -> None:
        self.sites: list[tuple[str, int]] = []
        """The function and the line of each statement before which a thread can be preempted."""
        self._stand_ins = set(stand_ins)
        self._scopes: list[str] = []

    # Stand-ins.

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        return [self._bound(alias, alias.name, None, node) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:
        if node.level or node.module not in self._stand_ins:
            return [node]
        return [self._bound(alias, str(node.module), alias.name, node) for alias in node.names]

    def _bound(self, alias: ast.alias, module: str, name: str | None, node: ast.stmt) -> ast.stmt:
        if module not in self._stand_ins:
            return ast.copy_location(ast.Import([alias]), node)
        attribute = f".{name}" if name else ""
        text = f"{alias.asname or name or module} = _simulated[{module!r}]{attribute}"
        return _parsed(text, node)

    # Sets.

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if isinstance(node.ctx, ast.Load) and node.id in ("set", "frozenset"):
            return ast.copy_location(ast.Name("_Set", ast.Load()), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # isinstance(x, set) asks for real sets as well.
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            node.args = [self.visit(node.args[0]), *node.args[1:]]
            return node
        return self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> ast.AST:
        self.generic_visit(node)
        return self._set(ast.Tuple(node.elts, ast.Load()), node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        self.generic_visit(node)
        return self._set(ast.GeneratorExp(node.elt, node.generators), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        # ``a.keys() - b.keys()`` is a set.
        self.generic_visit(node)
        if _is_keys(node.left) or _is_keys(node.right):
            node.left = self._set(node.left, node.left)
        return node

    def _set(self, items: ast.expr, node: ast.expr) -> ast.expr:
        name = ast.copy_location(ast.Name("_Set", ast.Load()), node)
        return ast.copy_location(ast.Call(name, [ast.copy_location(items, node)], []), node)

    # Preemption.

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, _SCOPES):
            return super().visit(node)
        self._scopes.append(node.name)
        self.generic_visit(node)
        if not isinstance(node, ast.ClassDef):
            self._interrupt_blocks(node)
        self._scopes.pop()
        return node

    def _interrupt_blocks(self, node: Any) -> None:
        for field in ("body", "orelse", "finalbody"):
            block: list[ast.stmt] = getattr(node, field, [])
            filled: list[ast.stmt] = []
            for statement in block:
                nested = isinstance(statement, _SCOPES)
                docstring = not filled and isinstance(statement, ast.Expr) and _is_text(statement.value)
                if not (nested or docstring or isinstance(statement, (ast.Global, ast.Nonlocal, ast.Pass))):
                    filled.append(self._point(statement))
                filled.append(statement)
                if not nested:
                    self._interrupt_blocks(statement)
            block[:] = filled
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self._interrupt_blocks(part)

    def _point(self, statement: ast.stmt) -> ast.stmt:
        site = len(self.sites)
        self.sites.append((".".join(self._scopes), statement.lineno))
        text = f"(_due() or _marked[{site}]) and _statement(__name__, {site}, _marked[{site}])"
        return _parsed(text, statement)


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _parsed(text: str, where: ast.stmt) -> ast.stmt:
    """Parse a statement, and put it on the line of another."""
    made = ast.parse(text).body[0]
    for node in ast.walk(made):
        ast.copy_location(node, where)
    return made


sites: dict[str, list[tuple[str, int]]] = {}
"""By module: the function and line of each place where a thread can be preempted."""
_modules: dict[str, ModuleType] = {}


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, stand_ins: dict[str, ModuleType], cache: Path) -> None:
        super().__init__(name, path)
        self._stand_ins, self._cache = stand_ins, cache

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        parts = [source, self.path.encode(), Path(__file__).read_bytes(), sys.version.encode()]
        key = blake2b(b"\0".join(parts), digest_size=12).hexdigest()
        cached = self._cache / f"{fullname}.{key}"
        code: CodeType
        if cached.is_file():
            sites[fullname], code = marshal.loads(cached.read_bytes())
            return code
        transform = _Transform(self._stand_ins)
        code = compile(transform.visit(ast.parse(source)), self.path, "exec", dont_inherit=True)
        sites[fullname] = transform.sites
        self._cache.mkdir(parents=True, exist_ok=True)
        fresh = cached.with_suffix(f".{os.getpid()}.new")
        fresh.write_bytes(marshal.dumps((transform.sites, code)))
        fresh.replace(cached)
        return code

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        module.__dict__.update(
            _simulated=self._stand_ins,
            _Set=Set,
            _due=lambda: 0,
            _marked=bytearray(len(sites[module.__name__])),
            _statement=scheduler.statement,
            open=self._stand_ins["os"].open_file,
        )
        _modules[module.__name__] = module
        exec(code, module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, stand_ins: dict[str, ModuleType], cache: Path) -> None:
        self._stand_ins, self._cache = stand_ins, cache

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path, self._stand_ins, self._cache)
        return spec


def install(stand_ins: dict[str, ModuleType], cache: Path) -> None:
    """From now on import the package for the simulation. It must not have been imported before."""
    loaded = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    assert not loaded, f"imported before the simulation was installed: {loaded}"
    sys.meta_path.insert(0, _Finder(stand_ins, cache))


def begin_preempting() -> None:
    """Have every statement of the package be a place for a preemption, as often as the scheduler says."""
    due: Callable[[], int] = scheduler.due().__next__  # type: ignore[attr-defined]
    for module in _modules.values():
        module.__dict__["_due"] = due


def module(name: str) -> ModuleType:
    """Return a module of the package by its full name."""
    return _modules[name]


def mark(module: str, site: int, on: bool = True) -> None:
    """Have the scheduler asked whenever a thread comes to this statement."""
    _modules[module].__dict__["_marked"][site] = on


def sites_of(function: str) -> list[tuple[str, int]]:
    """Return the statements of ``module:Class.method``, the module without the package's name."""
    module, _, name = function.partition(":")
    found = [
        (f"{PACKAGE}.{module}", number)
        for number, (owner, _) in enumerate(sites.get(f"{PACKAGE}.{module}", ()))
        if owner == name
    ]
    if not found:
        raise LookupError(f"{function} is no function of the package that was imported")
    return found


def knob(module: str, name: str, value: object) -> None:
    """Give a constant of a module of the package another value."""
    full = f"{PACKAGE}.{module}"
    if not hasattr(_modules[full], name):
        raise LookupError(f"{full} has no {name}")
    setattr(_modules[full], name, value)


__all__ = ["Set", "begin_preempting", "install", "knob", "mark", "module", "sites", "sites_of"]
