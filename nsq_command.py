"""The entry points of all programs of this package: pip's scripts call these functions.

They are outside the package ``nsq``, and import it late, for two reasons. A signal that comes while a program
still imports its modules would end it with a traceback, or with the wrong status: from their first line on
they hold signals back, until the program can handle them. And pynsq or nsq-py, whose modules are called
``nsq`` too, may have replaced files of the package: they say so.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would take long
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Sequence
else:
    import _signal  # what ``signal`` is made of; that imports much before it can do anything


def _program(name: str, module: str) -> Callable[[Sequence[str] | None], int]:
    """Make an entry point: the ``main`` of a module."""

    def start(argv: Sequence[str] | None = None) -> int:
        if argv is None:  # as a program
            numbers = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1)
            _signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)
        problem = problem_with_package(name)
        if problem:
            sys.stderr.write(f"{name}: {problem}\n")
            return 1
        from importlib import import_module

        if argv is None:
            import_module("nsq.threads.stop_signals").hold_signals()
        status: int = import_module(module).main(argv)
        return status

    return start


main = _program("nsq", "nsq.tools.front_door")
nsq_spark = _program("nsq-spark", "nsq.spark.cli")
nsqd = _program("nsqd", "nsq.daemons.nsqd.__main__")
nsqlookupd = _program("nsqlookupd", "nsq.daemons.nsqlookupd.__main__")
nsqadmin = _program("nsqadmin", "nsq.daemons.nsqadmin.__main__")
nsq_tail = _program("nsq_tail", "nsq.tools.nsq_tail")
nsq_stat = _program("nsq_stat", "nsq.tools.nsq_stat")
to_nsq = _program("to_nsq", "nsq.tools.to_nsq")
nsq_to_file = _program("nsq_to_file", "nsq.tools.nsq_to_file")
nsq_to_http = _program("nsq_to_http", "nsq.tools.nsq_to_http")
nsq_to_nsq = _program("nsq_to_nsq", "nsq.tools.nsq_to_nsq")
nsq_pubsub = _program("nsq_pubsub", "nsq.tools.nsq_pubsub")


def problem_with_package(program: str) -> str:
    """Why the module ``nsq`` of this environment is not ours, and what to do; empty when it is ours."""
    try:
        import nsq

        if "Consumer" in getattr(nsq, "__all__", ()):
            return ""
    except Exception as error:  # another client's module may fail in any way
        sys.stderr.write(f"{program}: import nsq fails: {error}\n")
    from importlib import metadata

    installed = {each.name.lower(): each for each in metadata.distributions(name="pynsq")}
    installed |= {each.name.lower(): each for each in metadata.distributions(name="nsq-py")}
    again = "pip install --force-reinstall --no-deps nsq"
    if not installed:
        return f"files of this package are missing, as after pynsq or nsq-py was uninstalled. Run {again}"
    names = " and ".join(f"{each.name} {each.version}" for each in installed.values())
    return (
        f"{names} is installed too, its module is also called nsq, and it has replaced files of this "
        f"package. Use an environment for each, or run pip uninstall {' '.join(installed)}, and then {again}"
    )


if __name__ == "__main__":
    sys.exit(main(None))
