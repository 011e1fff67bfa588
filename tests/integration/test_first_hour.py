"""README.md and then the tutorial: every block, in order, in one shell."""

from __future__ import annotations

from pathlib import Path

from .pages import STORY
from .shell_session import shell_session

UP = "nsqd        tcp 127.0.0.1:4150(.*\n)*.*Ctrl-C stops them"
README = [
    ("nsq up &", UP),
    ("python producer.py", "^b'hello'$"),
    ("nsq topics", "^greetings "),
    ("nsq top", "^greetings/print .* 1$"),
    ("nsq peek greetings/print", "^hello from a shell$"),
    ("pytest test_greetings.py", "1 passed"),
]
TUTORIAL = [
    ("nsq up &", UP),
    ("nsq topics", "^orders +5 "),
    ("nsq peek orders", '^{"order": 5, "amount": 50}$'),
    ("python consumer.py &", "^billed 5 50$"),
    ("python consumer.py &", "connected"),
    ("python producer.py", "^billed 5 50$"),
    ("nsq channels orders", "^billing .* 2$"),
    ("nsq top", "^orders/billing .* 2$"),
    ('nsq pub orders \'{"order": 6, "amount": 60}\'', "^billed at attempt 3$"),
    ("nsq channels orders", "^billing +0 +0 +0 +2 "),
    ("curl 'http://127.0.0.1:4151/stats'", "re-q: 2 "),
    ("nsq doctor", "knows 2 nsqds"),
    ("python consumer.py &", "^billed .*8.* from 127.0.0.1:4250$"),
]


def installs(command: str) -> bool:
    """Whether a line belongs to .ci/clean-machine, which sets up environments and runs the demonstration."""
    words = ("git clone", "make ", "pip ", "export PIP_", "cd ", "python3 -m venv", "nsq-spark ")
    return command.startswith(words) or "clicks" in command


def test_readme_and_then_the_tutorial_work_in_one_shell(tmp_path: Path) -> None:
    with shell_session(tmp_path) as session:
        for page, expected in zip(STORY, (README, TUTORIAL), strict=True):
            session.follow(page, expected, installs)
            session.run('test -z "$(jobs -r)" && test -z "$(ps -e -o args= | grep \'[n]sq\')"')
        assert "Traceback" not in session.output
    assert not (tmp_path / "nsq-data").exists()
