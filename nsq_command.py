"""The program ``nsq``. It explains what is wrong where pynsq or nsq-py has replaced files of this package.

Their modules are called ``nsq`` too, so this one is outside ``nsq``, and imports it only after a check.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    try:
        problem = problem_with_package()
        if problem:
            sys.stderr.write(f"nsq: {problem}\n")
            return 1
        from nsq.tools.front_door import main as run

        return run(argv)
    except KeyboardInterrupt:  # Ctrl-C during the imports
        return 130


def problem_with_package() -> str:
    """Why the module ``nsq`` of this environment is not ours, and what to do; empty when it is ours."""
    try:
        import nsq

        if "Consumer" in getattr(nsq, "__all__", ()):
            return ""
    except Exception as error:  # another client's module may fail in any way
        sys.stderr.write(f"nsq: import nsq fails: {error}\n")
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
    sys.exit(main())
