"""The example of the README, as a script without a `__main__` guard, with ranks that import everything."""

import re
from pathlib import Path

import pytest

import flodl.distributed.supervisor

README = Path(flodl.distributed.supervisor.__file__).parent / "README.md"


@pytest.mark.slow
def test_the_example_of_the_readme_runs_as_a_script(tmp_path, warm_python):
    code, output = re.findall(r"```(?:python|text)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "script.py"
    script.write_text(code)
    done = warm_python.run(script, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (output, "")
