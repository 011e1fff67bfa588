"""Public names of ``import nsq``, and hints for the names of other clients."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nsq
import nsq_command
from nsq import errors, other_clients
from tests.fakes.programs import run_python

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ast.parse((ROOT / "nsq/__init__.py").read_text("utf-8"))
#: Errors of Spark's write-ahead log, which no user of the client meets.
OF_SPARK = {"WalError", "WalOwned", "WalForeign", "SegmentLost"}
ERRORS = [
    name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)
]

#: What users of other clients write first.
FIRST_TRIES = """
    Reader LegacyReader Writer run Error BackoffTimer AsyncConn SyncConn pub mpub finish requeue touch
    valid_topic_name valid_channel_name NSQClient Client Nsqd NsqdTCPClient NsqdHTTPClient Lookupd
    LookupdClient NSQException NSQRequeueMessage create_reader create_writer open_connection
    ConnectionOptions NewConsumer NewProducer NewConfig
"""


def test_every_error_is_here_but_those_of_the_log_of_spark() -> None:
    assert set(nsq.__all__) & set(ERRORS) == set(ERRORS) - OF_SPARK
    assert len(ERRORS) > len(OF_SPARK) > 0


def test_every_name_leads_to_what_its_module_defines() -> None:
    assert set(nsq.__all__) <= set(dir(nsq))
    for name in set(nsq.__all__) - {"__version__"}:
        home = nsq._HOME.get(name, "nsq.errors")
        assert getattr(importlib.import_module(home), name) is getattr(nsq, name)


def test_type_checkers_see_the_same_names() -> None:
    (block,) = (
        node for node in SOURCE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == nsq._HOME


def test_nothing_is_loaded_before_it_is_used() -> None:
    program = "import sys, nsq; print(sorted(name for name in sys.modules if name.startswith('nsq')))"
    done = run_python("-c", program)
    assert (done.stdout.strip(), done.stderr) == ("['nsq', 'nsq.errors']", "")


# The names of other clients.


def test_a_name_of_another_client_is_answered_with_ours() -> None:
    for name in FIRST_TRIES.split():
        with pytest.raises(AttributeError) as caught:
            getattr(nsq, name)
        text = str(caught.value)
        assert text.startswith(f"module 'nsq' has no attribute {name!r}: ")
        assert text.endswith(other_clients.NAMES[name])


def test_importing_such_a_name_is_answered_too() -> None:
    with pytest.raises(ImportError, match=r"it is nsq\.Consumer here"):
        exec("from nsq import Reader")


def test_names_in_hints_exist() -> None:
    for name, text in other_clients.NAMES.items():
        assert not hasattr(nsq, name)
        for path in re.findall(r"\bnsq(?:\.\w+)+", text):
            assert pkgutil.resolve_name(path), text
        for kind, method in re.findall(r"\b(Producer|Message)\.(\w+)", text):
            assert hasattr(getattr(nsq, kind), method), text


@pytest.mark.parametrize("name", ["zzz", "consumer_", "_private"])
def test_any_other_name_is_just_unknown(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^module 'nsq' has no attribute '{name}'$"):
        getattr(nsq, name)


# Environments with another client whose module has the same name. The libraries of the others are replaced by
# a file of theirs and their metadata, as pip leaves them.


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "nsq", tmp_path / "nsq", ignore=shutil.ignore_patterns("__pycache__", "spark"))
    shutil.copy(ROOT / "nsq_command.py", tmp_path)
    return tmp_path


def install_metadata(site_packages: Path, name: str, version: str) -> None:
    folder = site_packages / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def run_in(site_packages: Path, *arguments: str) -> tuple[int, str]:
    # -S: without this environment's packages, of which nsq is one. -E: without PYTHONPATH, which Spark sets.
    done = subprocess.run(
        [sys.executable, "-E", "-S", *arguments],
        cwd=site_packages,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_importing_nsq_warns_about_a_client_whose_files_it_has_replaced(site_packages: Path) -> None:
    (site_packages / "nsq" / "reader.py").touch()
    install_metadata(site_packages, "pynsq", "0.9.1")
    status, output = run_in(site_packages, "-c", "import nsq; nsq.ConfigError")
    assert status == 0
    assert "RuntimeWarning: pynsq 0.9.1 is installed in this environment too" in output


def test_the_nsq_command_names_the_client_that_has_replaced_its_files(site_packages: Path) -> None:
    (site_packages / "nsq" / "__init__.py").write_text("class Reader: pass\n")
    install_metadata(site_packages, "nsq-py", "0.1.12")
    assert run_in(site_packages, "-m", "nsq_command", "topics") == (
        1,
        "nsq: nsq-py 0.1.12 is installed too, its module is also called nsq, and it has replaced files of "
        "this package. Use an environment for each, or run pip uninstall nsq-py, and then "
        "pip install --force-reinstall --no-deps nsq\n",
    )


def test_so_does_every_other_program(site_packages: Path) -> None:
    (site_packages / "nsq" / "__init__.py").write_text("class Reader: pass\n")
    install_metadata(site_packages, "pynsq", "0.9.1")
    status, output = run_in(site_packages, "-c", "import nsq_command, sys; sys.exit(nsq_command.nsqd())")
    assert (status, output[:33]) == (1, "nsqd: pynsq 0.9.1 is installed to")


def test_the_nsq_command_tells_how_to_restore_files_that_an_uninstall_removed(site_packages: Path) -> None:
    (site_packages / "nsq" / "__init__.py").unlink()
    status, output = run_in(site_packages, "-m", "nsq_command", "topics")
    assert status == 1
    assert output.startswith(
        "nsq: files of this package are missing, as after pynsq or nsq-py was uninstalled"
    )


def test_the_nsq_command_runs_where_no_other_client_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert nsq_command.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: nsq COMMAND")
