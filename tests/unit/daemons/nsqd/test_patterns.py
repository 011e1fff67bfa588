from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.patterns import BadPattern, Pattern


@pytest.mark.parametrize(
    ("source", "found", "not_found"),
    [
        ("", ["", "anything"], []),
        ("b", ["abc"], ["ac"]),
        ("^orders$", ["orders"], ["orders2", "my-orders"]),
        (r"\Aa.c\z", ["abc", "a.c"], ["abcd", "ac"]),
        ("^(orders|billing)[.]", ["orders.eu", "billing.us"], ["orders", "xorders."]),
        ("^(?:a|b|)$", ["a", "b", ""], ["c", "ab"]),
        ("^a*b+c?$", ["b", "aabbc"], ["a", "bcc"]),
        ("^a*?b+?c??$", ["b", "aabbc"], ["a", "bcc"]),
        ("^a{2}$", ["aa"], ["a", "aaa"]),
        ("^a{2,}$", ["aa", "a" * 64], ["a"]),
        ("^a{1,3}$", ["a", "aaa"], ["", "aaaa"]),
        ("^a{0}$", [""], ["a"]),
        ("^[a-z]{1,1000}$", ["z" * 64], ["", "z1"]),
        ("a{,5}", ["a{,5}"], ["aaaaa"]),
        ("a{01}", ["a{01}"], ["a"]),
        ("x{", ["x{"], ["x"]),
        ("^[]a]+$", ["a]"], ["b"]),
        ("^[^a-c]$", ["d", "-"], ["a", ""]),
        ("^[a-]$", ["a", "-"], ["b"]),
        ("^[[:alpha:][:digit:]_]+$", ["aZ0_"], ["a.b"]),
        ("^[[:^digit:]]$", ["a"], ["1"]),
        (r"^\d\D\w\W\S$", ["1aa-x"], ["aaa-x"]),
        (r"^[\d\-a]+$", ["1-a"], ["b"]),
        (r"^\.\x41\x{42}\103\n?$", [".ABC"], ["xABC"]),
        (r"^\Qa.b*\E$", ["a.b*"], ["axb*"]),
        (r"^\Qa.b", ["a.b"], ["axb"]),
        ("^(?i)oRDERS-[a-c]$", ["ORDERS-B", "orders-b"], ["order-b"]),
        ("^(?i:a)b$", ["ab", "Ab"], ["aB"]),
        ("^((?i)a)b$", ["Ab"], ["AB"]),
        ("^(?i)a(?-i)b$", ["Ab"], ["AB"]),
        (r"\bb\b", ["a.b", "b"], ["ab"]),
        (r"^\B$", [""], ["a"]),
        (r"a\Bb", ["ab"], ["a.b"]),
        ("^(?P<team>[a-z]+)-(?<number>[0-9]+)$", ["ops-7"], ["ops-"]),
        (r"^\p{Lu}\pN\P{L}$", ["A1."], ["a1.", "A1a"]),
        ("^(?sm)a.$", ["ab"], ["a"]),
        ("(#ephemeral)?$", ["t#ephemeral", "t"], []),
        ("ä", [], ["a"]),
    ],
)
def test_a_pattern_matches_as_in_go(source: str, found: list[str], not_found: list[str]) -> None:
    pattern = Pattern(source)
    assert [name for name in found if not pattern.search(name)] == []
    assert [name for name in not_found if pattern.search(name)] == []


@pytest.mark.parametrize(
    "source",
    [
        "(", ")", "a)", "[", "[a", "[z-a]", "[a-\\d]", "[[:what:]]", "[a--b]",
        "*", "+a", "a|*", "a**", "a*+", "a{2}{3}",
        "a{1001}", "a{3,2}", "(a{100}){100}", "a{99999999999999999999}",
        r"\8", r"\y", r"\Z", r"\C", "\\", r"\xg0", r"\x{110000}", r"\p{Greek", r"\p{Nonsense}",
        "(?=a)", "(?!a)", "(?<=a)", r"(a)\1", "(?", "(?i", "(?x)a", "(?P<a", "(?P<>a)",
        "(" * 5000, "(" * 150 + ")" * 150, "(a{1000}|b{1000})" * 200, "a" * 5000,
    ],
)  # fmt: skip
def test_a_pattern_that_go_refuses_is_refused(source: str) -> None:
    with pytest.raises(BadPattern):
        Pattern(source)


@pytest.mark.parametrize(
    "source",
    [
        "(a+)+$",
        "(a*)*b",
        "^(a|a)*$",
        "(.*)*!",
        "^(a?){64}a{64}b$",
        ".*.*.*.*.*.*.*.*.*.*b",
        "(a|aa)+$",
        "(x+x+)+y",
    ],
)
def test_a_pattern_that_backtracks_elsewhere_takes_linear_time(source: str) -> None:
    for name in ("a" * 63 + "-", "x" * 64, "ab" * 32):
        assert Pattern(source).search(name) == (name == "ab" * 32 and source.endswith("*b"))


atoms = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\w", r"\d", "^", "$", r"\b", "(?:ab)", "(a|b)", "-", "(?i:A)"]
)
repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{0,3}", "*?", "+?"])


@st.composite
def sources(draw: st.DrawFn, depth: int = 2) -> str:
    source = ""
    for _ in range(draw(st.integers(0, 4))):
        atom = f"({draw(sources(depth=depth - 1))})" if depth and draw(st.booleans()) else draw(atoms)
        # Python takes no repetition of an anchor.
        source += atom + (draw(repeats) if atom not in ("^", "$", r"\b") else "")
    return source + ("|" + draw(atoms) if draw(st.booleans()) else "")


@given(sources(), st.text("abA-.1", max_size=8))
def test_a_pattern_matches_as_in_python(source: str, name: str) -> None:
    expected = re.search(source.replace("$", r"\Z"), name, re.ASCII) is not None
    assert Pattern(source).search(name) is expected
