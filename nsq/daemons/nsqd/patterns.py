"""Regular expressions as Go's regexp package reads them, for the names of topics and channels.

An auth server's patterns must never stall nsqd. Python's ``re`` backtracks, and can need years for
``(a+)+$``. Here all alternatives are followed at once, so the time is bounded by the length of the pattern
times that of the name. A pattern is compiled to a list of steps; for every step an integer holds, as a bit
set, the positions of the name at which the search can be in this step.

Names are ASCII and at most 64 characters long; syntax that they cannot need is left out. Pure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

#: A higher count makes no difference: the longest name has fewer characters.
_COUNT_ENOUGH = 80
#: Go's limit on repeat counts, also on the product of nested ones.
_MAX_COUNT = 1000
_MAX_DEPTH = 100
_MAX_LENGTH = 4000
_MAX_STEPS = 10_000

_ASCII = [chr(code) for code in range(128)]


def _mask(characters: Iterable[str]) -> int:
    """Return a set of ASCII characters as an integer, one bit for each."""
    mask = 0
    for character in characters:
        mask |= 1 << ord(character)
    return mask


_ANY = _mask(_ASCII)
_DIGITS = _mask("0123456789")
_WORD = _mask(character for character in _ASCII if character.isalnum() or character == "_")
_SPACE = _mask("\t\n\f\r ")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_POSIX = {
    "alnum": _mask(filter(str.isalnum, _ASCII)),
    "alpha": _mask(filter(str.isalpha, _ASCII)),
    "ascii": _ANY,
    "blank": _mask("\t "),
    "cntrl": _mask([*_ASCII[:32], "\x7f"]),
    "digit": _DIGITS,
    "graph": _mask(_ASCII[33:127]),
    "lower": _mask(filter(str.islower, _ASCII)),
    "print": _mask(_ASCII[32:127]),
    "punct": _mask(character for character in _ASCII[33:127] if not character.isalnum()),
    "space": _mask("\t\n\v\f\r "),
    "upper": _mask(filter(str.isupper, _ASCII)),
    "word": _WORD,
    "xdigit": _mask("0123456789abcdefABCDEF"),
}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL = frozenset("01234567")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")

#: Kinds of steps. A character leads to the next step; EITHER leads to the next step and to another one.
_CHARACTER, _EITHER, _AT_START, _AT_END, _AT_WORD, _NOT_AT_WORD, _MATCH = range(7)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of a parsed pattern: one character of a set, or an assertion about the position."""

    kind: int
    characters: int = 0


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: list[_Node]


@dataclass(frozen=True, slots=True)
class _Either:
    branches: list[_Node]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node = _Step | _Sequence | _Either | _Repeat


class BadPattern(ValueError):
    """The text is not a regular expression that Go accepts; the message says why."""


class Pattern:
    """A compiled pattern; ``search`` tells whether it matches anywhere in a name."""

    __slots__ = ("_start", "_steps", "source")

    def __init__(self, source: str) -> None:
        """Compile the pattern. Raises BadPattern."""
        if len(source) > _MAX_LENGTH:
            raise BadPattern(f"expression too large: {len(source)} characters are more than {_MAX_LENGTH}")
        self.source = source
        program = _Program(_Parser(source).parse())
        self._steps, self._start = program.steps, program.start

    def __repr__(self) -> str:
        return f"Pattern({self.source!r})"

    @property
    def steps(self) -> int:
        """The number of steps, which determines the memory that a pattern takes."""
        return len(self._steps)

    def search(self, name: str) -> bool:
        steps = self._steps
        everywhere = (1 << len(name) + 1) - 1
        stands: dict[int, int] = {}
        places: dict[int, int] = {}  # by set: the positions of its characters in the name
        waiting = [(self._start, everywhere)]
        while waiting:
            place, positions = waiting.pop()
            seen = stands.get(place, 0)
            positions &= ~seen
            if not positions:
                continue
            stands[place] = seen | positions
            kind, operand, following = steps[place]
            if kind == _MATCH:
                return True
            if kind == _EITHER:
                waiting.append((operand, positions))
            elif kind == _CHARACTER:
                found = places.get(operand)
                if found is None:
                    found = places[operand] = _places(operand, name)
                positions = (positions & found) << 1
            elif kind == _AT_START:
                positions &= 1
            elif kind == _AT_END:
                positions &= 1 << len(name)
            else:
                borders = _borders(name)
                positions &= borders if kind == _AT_WORD else ~borders
            if positions:
                waiting.append((following, positions))
        return False


def _places(characters: int, name: str) -> int:
    found = 0
    for position, character in enumerate(name):
        code = ord(character)
        if code < 128 and characters >> code & 1:
            found |= 1 << position
    return found


def _borders(name: str) -> int:
    """Return the positions where a word begins or ends."""
    word = _places(_WORD, name)
    return word ^ word << 1


class _Program:
    """Compiles a parsed pattern to steps (kind, operand, next step), starting at the end."""

    def __init__(self, node: _Node) -> None:
        self.steps: list[tuple[int, int, int]] = []
        self.start = self._add(node, self._step(_MATCH, 0, 0))

    def _step(self, kind: int, operand: int, following: int) -> int:
        if len(self.steps) >= _MAX_STEPS:
            raise BadPattern("expression too large")
        self.steps.append((kind, operand, following))
        return len(self.steps) - 1

    def _add(self, node: _Node, following: int) -> int:
        """Add the node's steps, which lead to ``following``; return the first of them."""
        if isinstance(node, _Sequence):
            for part in reversed(node.parts):
                following = self._add(part, following)
            return following
        if isinstance(node, _Either):
            first = self._add(node.branches[-1], following)
            for branch in reversed(node.branches[:-1]):
                first = self._step(_EITHER, self._add(branch, following), first)
            return first
        if isinstance(node, _Repeat):
            return self._add_repeat(node, following)
        return self._step(node.kind, node.characters, following)

    def _add_repeat(self, node: _Repeat, following: int) -> int:
        least = min(node.least, _COUNT_ENOUGH)
        if node.most is None:
            loop = self._step(_EITHER, 0, following)
            self.steps[loop] = (_EITHER, self._add(node.part, loop), following)
            following = loop
        else:
            end = following
            for _ in range(min(node.most, _COUNT_ENOUGH) - least):
                following = self._step(_EITHER, self._add(node.part, following), end)
        for _ in range(least):
            following = self._add(node.part, following)
        return following


class _Parser:
    """Parses Go's syntax, which is that of RE2: no look-around, no back-references."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._position = 0
        self._ignores_case = False
        self._depth = 0

    def parse(self) -> _Node:
        node = self._alternatives()
        if not self._done:
            raise BadPattern("unexpected )")
        return node

    @property
    def _done(self) -> bool:
        return self._position >= len(self._source)

    def _looking_at(self, text: str) -> bool:
        return self._source.startswith(text, self._position)

    def _following(self, characters: frozenset[str]) -> bool:
        return not self._done and self._source[self._position] in characters

    def _accept(self, text: str) -> bool:
        found = self._looking_at(text)
        if found:
            self._position += len(text)
        return found

    def _next(self) -> str:
        if self._done:
            raise BadPattern("unexpected end")
        character = self._source[self._position]
        self._position += 1
        return character

    def _alternatives(self) -> _Node:
        branches = [self._sequence()]
        while self._accept("|"):
            branches.append(self._sequence())
        return _Either(branches) if len(branches) > 1 else branches[0]

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while not self._done and not self._looking_at("|") and not self._looking_at(")"):
            if self._accept("\\Q"):
                end = self._source.find("\\E", self._position)
                text = self._source[self._position : end if end >= 0 else None]
                parts += [self._literal(character) for character in text]
                self._position = end + 2 if end >= 0 else len(self._source)
                if not text:
                    continue
            elif (atom := self._atom()) is not None:
                parts.append(atom)
            else:
                continue
            parts[-1] = self._repeated(parts[-1])
        return _Sequence(parts)

    def _atom(self) -> _Node | None:
        """Parse one item that can be repeated; None for a change of flags."""
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return _Step(_CHARACTER, self._set())
        if character == ".":
            return _Step(_CHARACTER, _ANY & ~_mask("\n"))
        if character == "^":
            return _Step(_AT_START)
        if character == "$":
            return _Step(_AT_END)
        if character == "\\":
            return self._escaped()
        if character in "*+?":
            raise BadPattern(f"missing argument to repetition operator {character}")
        return self._literal(character)

    def _literal(self, character: str) -> _Node:
        return _Step(_CHARACTER, self._folded(_mask([character]) if ord(character) < 128 else 0))

    def _folded(self, characters: int) -> int:
        """Add the letters of the other case, when case is ignored."""
        if self._ignores_case:
            upper, lower = characters & _POSIX["upper"], characters & _POSIX["lower"]
            characters |= upper << 32 | lower >> 32
        return characters

    # Groups and flags.

    def _group(self) -> _Node | None:
        before = self._ignores_case
        if self._accept("?"):
            if self._accept("P<") or self._accept("<"):
                self._name_of_group()
            elif not self._flags():
                return None  # the flags hold until the enclosing group ends
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise BadPattern("expression nests too deeply")
        node = self._alternatives()
        self._depth -= 1
        if not self._accept(")"):
            raise BadPattern("missing closing )")
        self._ignores_case = before
        return node

    def _name_of_group(self) -> None:
        name, closing, _ = self._source[self._position :].partition(">")
        if not closing or not name or not all(character.isalnum() or character == "_" for character in name):
            raise BadPattern("invalid named capture")
        self._position += len(name) + 1

    def _flags(self) -> bool:
        """Parse flags; return whether a group follows: ``(?i:``, not ``(?i)``. Only i matters to a name."""
        on = True
        while (character := self._next()) not in ":)":
            if character == "-" and on:
                on = False
            elif character == "i":
                self._ignores_case = on
            elif character not in "msU":
                raise BadPattern("invalid or unsupported Perl syntax (?" + character)
        return character == ":"

    # Repetition.

    def _repeated(self, node: _Node) -> _Node:
        start = self._position
        bounds = self._bounds()
        if bounds is None:
            return node
        self._accept("?")  # a lazy repetition matches the same names
        end = self._position
        if self._bounds() is not None:
            raise BadPattern(f"invalid nested repetition operator {self._source[start : self._position]}")
        self._position = end
        if _times(node) * max(bounds[0], bounds[1] or 0) > _MAX_COUNT:
            raise BadPattern("invalid repeat count")
        return _Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """Read the bounds of a repetition operator; None when there is none."""
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(operator):
                return bounds
        if not self._looking_at("{"):
            return None
        inside, closing, _ = self._source[self._position + 1 :].partition("}")
        least, comma, most = inside.partition(",")
        if not closing or not _is_number(least) or (most and not _is_number(most)):
            return None  # the brace is a literal
        self._position += len(inside) + 2
        low = int(least[:9])
        high = low if not comma else int(most[:9]) if most else None
        if low > _MAX_COUNT or (high is not None and not low <= high <= _MAX_COUNT):
            raise BadPattern(f"invalid repeat count {{{inside}}}")
        return low, high

    # Escapes and sets.

    def _escaped(self) -> _Node:
        anchors = {"A": _AT_START, "z": _AT_END, "b": _AT_WORD, "B": _NOT_AT_WORD}
        letter = self._source[self._position : self._position + 1]
        if letter in anchors:
            self._position += 1
            return _Step(anchors[letter])
        characters = self._class()
        return self._literal(self._character()) if characters is None else _Step(_CHARACTER, characters)

    def _class(self) -> int | None:
        r"""Parse a class after a backslash: ``\d`` and the like, ``\pL``, ``\P{Lu}``; else None."""
        letter = self._next()
        characters = _CLASSES.get(letter.lower())
        if characters is None and letter in "pP":
            name = self._next()
            if name == "{":
                name, closing, _ = self._source[self._position :].partition("}")
                if not closing:
                    raise BadPattern("invalid character class range")
                self._position += len(name) + 1
            if name.startswith("^"):
                return self._inverted(_unicode(name[1:]), letter == "p")
            return self._inverted(_unicode(name), letter == "P")
        if characters is None:
            self._position -= 1
            return None
        return self._inverted(characters, letter.isupper())

    def _inverted(self, characters: int, really: bool) -> int:
        characters = self._folded(characters)
        return _ANY & ~characters if really else characters

    def _character(self) -> str:
        """Parse the character that an escape stands for, after its backslash."""
        letter = self._next()
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "x":
            return self._hexadecimal()
        if letter == "0" or (letter in _OCTAL and self._following(_OCTAL)):
            digits = letter
            while len(digits) < 3 and self._following(_OCTAL):
                digits += self._next()
            return chr(int(digits, 8))
        if letter.isascii() and not letter.isalnum():
            return letter
        raise BadPattern(f"invalid escape sequence \\{letter}")

    def _hexadecimal(self) -> str:
        if self._accept("{"):
            digits, closing, _ = self._source[self._position :].partition("}")
            self._position += len(digits) + 1
        else:
            digits, closing = self._source[self._position : self._position + 2], "}"
            self._position += 2
            if len(digits) < 2:
                closing = ""
        if not closing or not digits or not set(digits) <= _HEXADECIMAL or int(digits, 16) > 0x10FFFF:
            raise BadPattern(f"invalid escape sequence \\x{digits[:20]}")
        return chr(int(digits, 16))

    def _set(self) -> int:
        inverted = self._accept("^")
        characters = 0
        first = True
        while first or not self._accept("]"):
            characters |= self._member(first)
            first = False
        return self._inverted(characters, inverted)

    def _member(self, first: bool) -> int:
        """Parse one part of a set: a class, a range, or a character."""
        if self._accept("[:"):
            name, closing, _ = self._source[self._position :].partition(":]")
            known = _POSIX.get(name.removeprefix("^"))
            if not closing or known is None:
                raise BadPattern("invalid character class range [:" + name[:20])
            self._position += len(name) + 2
            return _ANY & ~known if name.startswith("^") else known
        if self._looking_at("-") and not first and not self._source[self._position + 1 :].startswith("]"):
            raise BadPattern("invalid character class range -")
        if self._accept("\\"):
            known = self._class()
            if known is not None:
                return known
            low = self._character()
        else:
            low = self._next()
        if not self._looking_at("-") or self._source[self._position + 1 :].startswith("]"):
            return _mask([low]) if ord(low) < 128 else 0
        self._position += 1
        high = self._character() if self._accept("\\") else self._next()
        if ord(high) < ord(low):
            raise BadPattern(f"invalid character class range {low}-{high}")
        return _mask(_ASCII[ord(low) : ord(high) + 1])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or not text.startswith("0"))


def _times(node: _Node) -> int:
    """Return how often the counts within a node repeat its innermost part."""
    if isinstance(node, _Sequence):
        return max(map(_times, node.parts), default=1)
    if isinstance(node, _Either):
        return max(map(_times, node.branches))
    if isinstance(node, _Repeat):
        return _times(node.part) * max(node.least, node.most or 0, 1)
    return 1


def _unicode(name: str) -> int:
    """Return the ASCII characters of a general category or script."""
    if name == "Any":
        return _ANY
    if name == "Latin":
        return _POSIX["alpha"]
    if name == "Common":
        return _ANY & ~_POSIX["alpha"]
    if not name or len(name) > 2 or name[0] not in "LMNPSZC":
        raise BadPattern(f"unsupported character class \\p{{{name[:20]}}}")
    return _mask(character for character in _ASCII if unicodedata.category(character).startswith(name))
