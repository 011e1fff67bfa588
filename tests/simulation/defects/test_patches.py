"""The patches of the defects fit the tree. Whether the simulation finds them is a matter of hours:
``make put-back``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.simulation.defects.__main__ import HERE, ROOT, apply


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
@pytest.mark.parametrize("patch", sorted(HERE.glob("*.patch")), ids=lambda patch: patch.stem)
def test_a_patch_fits_and_says_what_the_defect_was(patch: Path) -> None:
    prose, _, diff = patch.read_text().partition("\ndiff --git ")
    assert "users" in prose.lower().split(), "it must begin with what the defect was and what users saw"
    assert set(re.findall(r"^\+\+\+ b/(\w+)/", diff, re.MULTILINE)) == {"nsq"}
    try:
        apply(patch, ROOT, "--check")
    except subprocess.CalledProcessError as error:
        pytest.fail(
            "it does not apply any more: change it so that it puts the defect back into today's code, or "
            f"remove it if that code is gone\n{error.stderr.decode()}"
        )
