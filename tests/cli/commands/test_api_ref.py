"""`fdl api-ref`: every public name, read from the source."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

import flodl
from flodl.cli import main
from flodl.cli.reference import entries as reference
from flodl.cli.reference.entries import read_entries

HERE = Path(flodl.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """Parse the source of flodl, which takes most of a second, once for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "read_entries", functools.cache(read_entries))
        yield


@pytest.fixture(scope="module")
def entries():
    return {entry.name: entry for entry in reference.read_entries(HERE.resolve())}


@pytest.mark.parametrize("name", sorted(flodl.__all__))
def test_every_public_name_of_flodl_is_listed_with_its_doc(entries, name):
    entry = entries[f"flodl.{name}"]
    value = getattr(flodl, name)
    assert entry.kind == ("class" if isinstance(value, type) else "function")
    assert entry.doc
    assert value.__doc__.split("\n\n")[0].split() == entry.doc.split()
    assert (HERE.parent / entry.file).is_file()


def test_every_name_of_every_package_is_listed_once(entries):
    locations = [(entry.file, entry.line) for entry in entries.values()]
    assert len(locations) == len(set(locations))
    defined = {entry.name.split(".")[-1] for entry in entries.values()}
    assert set(flodl.optim.__all__) <= defined
    assert set(flodl.core.__all__) <= defined


def test_methods_of_base_classes_and_builders_are_listed(entries):
    graph = entries["flodl.Graph"].as_json()
    names = {method["name"] for method in graph["methods"]}
    assert {"freeze", "record", "svg", "save_checkpoint", "tags"} <= names
    builder = entries["flodl.FlowBuilder"].as_json()
    assert {"through", "tag", "split"} <= {method["name"] for method in builder["builder_methods"]}
    assert builder["constructors"][0]["sig"].startswith("FlowBuilder(")
    assert builder["examples"]


def test_signatures_match_the_source(entries):
    assert entries["flodl.TrainStep"].signature.startswith("TrainStep(model: nn.Module, optimizer: Optimizer")
    assert entries["flodl.LoadReport"].signature.startswith("LoadReport(loaded: tuple[str, ...] = (), ")
    assert entries["flodl.manual_seed"].signature == "manual_seed(seed: int) -> None"


@pytest.mark.parametrize(
    "name",
    ["flodl.checkpoint.save_checkpoint", "flodl.checkpoint.load_checkpoint", "flodl.graph.Graph.freeze"],
)
def test_a_name_is_found_in_each_package_that_exports_it(capsys, name):
    assert main(["api-ref", name]) == 0
    last = name.split(".")[-1]
    assert f"  {last}(" in capsys.readouterr().out


def test_names_are_grouped_by_package(capsys):
    assert main(["api-ref"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"flodl {flodl.__version__}\n")
    assert "\ngraph\n" in shown
    assert "\n  flodl.FlowBuilder\n" in shown


def test_one_name_is_shown_in_full(capsys):
    assert main(["api-ref", "Rng"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("flodl.Rng  (class, flodl/core/rng.py:")
    assert "\nMethods\n" in shown


def test_a_method_is_found_by_its_name(capsys):
    for name in ("Graph.freeze", "graph.FREEZE"):
        assert main(["api-ref", name]) == 0
        shown = capsys.readouterr().out
        assert "  freeze(path: str" in shown
        assert "thaw(" not in shown


def test_a_package_or_part_of_a_name_shows_a_list(capsys):
    assert main(["api-ref", "optim"]) == 0
    assert "flodl.optim.CosineScheduler" in capsys.readouterr().out
    assert main(["api-ref", "router"]) == 0
    shown = capsys.readouterr().out
    assert "flodl.SoftmaxRouter" in shown
    assert "flodl.TopKRouter" in shown


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("FlowBilder", "FlowBuilder"), ("Graph.freez", "Graph.freeze"), ("treshold", "Threshold")],
)
def test_an_unknown_name_suggests_the_nearest(capsys, name, nearest):
    assert main(["api-ref", name]) == 1
    message = capsys.readouterr().err
    assert f"flodl has no public name {name!r}. Did you mean " in message
    assert nearest in message


def test_json_has_the_documented_keys(capsys):
    assert main(["api-ref", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == flodl.__version__
    keys = {
        "name",
        "category",
        "file",
        "doc",
        "traits",
        "constructors",
        "builder_methods",
        "methods",
        "examples",
    }
    assert all(keys <= set(entry) for entry in found["types"])
    assert "flodl.manual_seed" in {entry["name"] for entry in found["functions"]}


def test_another_package_can_be_read_without_importing_it(tmp_path, capsys):
    package = tmp_path / "thing"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import A, f\n__all__ = ['A', 'f']\nraise ImportError\n")
    (package / "inner.py").write_text(
        "from typing import NamedTuple\n\n"
        "class A(NamedTuple):\n    '''A pair.'''\n    x: int\n    y: int = 2\n\n"
        "    @property\n    def sum(self) -> int:\n        '''Both.'''\n\n"
        "async def f(a, /, *b: int, c=3, **d) -> str:\n    '''Do it,\n    well.'''\n"
    )
    assert main(["api-ref", "--path", str(package), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (pair,), (function,) = found["types"], found["functions"]
    assert pair["sig"] == "A(x: int, y: int = 2)"
    assert pair["methods"] == [{"name": "sum", "sig": "sum: int", "doc": "Both."}]
    assert (function["sig"], function["doc"]) == ("f(a, /, *b: int, c=3, **d) -> str", "Do it, well.")


def test_a_folder_without_a_package_or_with_invalid_python_is_an_error(tmp_path, capsys):
    assert main(["api-ref", "--path", str(tmp_path)]) == 1
    assert "is not a package" in capsys.readouterr().err
    (tmp_path / "__init__.py").write_text("def (")
    assert main(["api-ref", "--path", str(tmp_path)]) == 1
    assert "cannot be parsed as Python" in capsys.readouterr().err


def test_reading_entries_does_not_import_torch():
    code = (
        "import sys; from flodl.cli.reference.entries import read_entries; from pathlib import Path; "
        f"read_entries(Path({str(HERE)!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
