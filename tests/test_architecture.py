"""The shape of the package: imports point down, the surface is what it says, the environment has one door."""

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import flodl
from flodl.core import errors

SOURCE = Path(flodl.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MOST_PUBLIC_NAMES = 27

# From the top down; packages of one level do not import each other.
LEVELS = [
    {"cli"},
    {"train", "hf"},
    {"monitor", "distributed"},
    {"graph", "engine", "data"},
    {"observe", "checkpoint", "optim", "nn"},
    {"core"},
]
LEVEL_OF = {package: level for level, packages in enumerate(LEVELS) for package in packages}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """Return the package right under `flodl`, or "" for `flodl` itself; `__main__` is the command line."""
    package = module.partition(".")[2].split(".")[0]
    return "cli" if package == "__main__" else package


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and any(
        "TYPE_CHECKING" in (getattr(part, "id", ""), getattr(part, "attr", ""))
        for part in ast.walk(node.test)
    )


def imports(path: Path, *, for_types: bool) -> Iterator[str]:
    """Give the flodl modules that a file imports anywhere; `for_types` adds those under TYPE_CHECKING."""
    return (target for target, is_for_types in all_imports(path) if for_types or not is_for_types)


@functools.cache
def all_imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """Return the flodl modules that a file imports anywhere, and whether each is for types only."""
    return tuple(visit_imports(path))


def visit_imports(path: Path) -> Iterator[tuple[str, bool]]:
    here = module_name(path)
    base = here.split(".") if path.name == "__init__.py" else here.split(".")[:-1]
    text = path.read_text()
    # Imports are statements, and most of a tree are expressions.
    has_dynamic = "import_module" in text or "__import__" in text
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(text), False)]
    while waiting:
        node, for_types = waiting.pop()
        if is_type_checking(node):
            waiting.extend((one, for_types) for one in node.orelse)
            waiting.extend((one, True) for one in [node.test, *node.body])
            continue
        children = ast.iter_child_nodes(node)
        waiting.extend((one, for_types) for one in children if has_dynamic or not isinstance(one, ast.expr))
        found: Iterable[str] = ()
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names if alias.name.split(".")[0] == "flodl"]
        elif isinstance(node, ast.ImportFrom):
            parent = base[: len(base) - node.level + 1] if node.level else []
            target = ".".join(parent + ([node.module] if node.module else []))
            if target.split(".")[0] == "flodl":
                found = [imported(target, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call):
            found = dynamic_import(node, here)
        yield from ((target, for_types) for target in found)


def imported(target: str, name: str) -> str:
    """`from target import name` imports the module `target.name` where there is one, else `target`."""
    path = SOURCE.parent / Path(*target.split("."), name)
    return f"{target}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else target


def dynamic_import(call: ast.Call, here: str) -> Iterator[str]:
    """`import_module("flodl.x")`; of a formatted string, the part before the first brace counts."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called not in ("import_module", "__import__") or not call.args:
        return
    argument = call.args[0]
    first = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
    text = first.value if isinstance(first, ast.Constant) else ""
    # The lazy loader of the public names reaches every package; that is what it is for.
    if here != "flodl" and isinstance(text, str) and text.startswith("flodl"):
        yield text.rstrip(".")


def test_every_package_has_a_place_in_the_layers():
    found = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert found <= LEVEL_OF.keys()


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_down(path):
    package = package_of(module_name(path))
    for target in imports(path, for_types=True):
        other = package_of(target)
        if package == "" or other == package:
            continue
        if other == "":
            assert package == "cli", (
                f"{module_name(path)} imports flodl itself; import from the package instead"
            )
            continue
        assert LEVEL_OF[package] < LEVEL_OF[other], f"{module_name(path)} imports {target}"


def test_there_is_no_import_cycle():
    """Imports under TYPE_CHECKING count too. Only the lazy public names of `flodl` itself are exempt."""
    known = {module_name(path) for path in FILES}
    edges = {}
    for path in FILES:
        module = module_name(path)
        edges[module] = {target for target in imports(path, for_types=module != "flodl") if target in known}
    finished: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail[trail.index(module) :], module))
        if module not in finished:
            for target in sorted(edges[module]):
                visit(target, (*trail, module))
            finished.add(module)

    for module in sorted(edges):
        visit(module, ())


def test_the_checks_see_late_imports_dynamic_ones_and_those_for_types(tmp_path, monkeypatch):
    sample = tmp_path / "flodl" / "graph" / "sample.py"
    sample.parent.mkdir(parents=True)
    sample.write_text(
        "if TYPE_CHECKING:\n    from flodl.train import Trainer\n"
        "def late():\n    import flodl.cli\n    import_module(f'flodl.hf.{name}')\n    from ..data import x\n"
    )
    monkeypatch.setitem(globals(), "SOURCE", tmp_path / "flodl")
    assert sorted(imports(sample, for_types=False)) == ["flodl.cli", "flodl.data", "flodl.hf"]
    assert "flodl.train" in imports(sample, for_types=True)


@pytest.mark.parametrize(
    "late_or_typed", ["def late():\n    from . import b\n", "if TYPE_CHECKING:\n    from . import b\n"]
)
def test_the_check_for_cycles_would_find_one(late_or_typed, tmp_path, monkeypatch):
    package = tmp_path / "flodl"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text(late_or_typed)
    (package / "b.py").write_text("from flodl.a import late\n")
    monkeypatch.setitem(globals(), "SOURCE", package)
    monkeypatch.setitem(globals(), "FILES", sorted(package.rglob("*.py")))
    with pytest.raises(AssertionError, match=r"flodl\.a → flodl\.b → flodl\.a"):
        test_there_is_no_import_cycle()


def test_the_public_names_are_sorted_few_and_each_can_be_had():
    assert flodl.__all__ == sorted(flodl.__all__)
    assert len(flodl.__all__) <= MOST_PUBLIC_NAMES
    assert set(flodl.__all__) == set(flodl._HOME)
    for name in flodl.__all__:
        value = getattr(flodl, name)
        assert value is getattr(importlib.import_module(f"flodl.{flodl._HOME[name]}"), name)
    assert set(flodl.__all__) | set(flodl._PACKAGES) <= set(dir(flodl))
    with pytest.raises(AttributeError, match="module 'flodl' has no attribute 'Nothing'"):
        flodl.Nothing  # noqa: B018


def test_type_checkers_see_the_names_that_are_loaded_lazily():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if is_type_checking(node))
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen == set(flodl.__all__) | set(flodl._PACKAGES)


@pytest.mark.parametrize("package", [path.parent.name for path in sorted(SOURCE.glob("*/__init__.py"))])
def test_every_package_lists_its_names_and_says_what_it_is(package):
    module = importlib.import_module(f"flodl.{package}")
    assert all(hasattr(module, name) for name in module.__all__)
    assert module.__all__ == sorted(module.__all__)
    assert module.__doc__
    readme = (SOURCE / package / "README.md").read_text()
    assert readme.startswith(f"# {package}\n")


@pytest.mark.parametrize("module", ["flodl", "flodl.core", "flodl.cli", "flodl.core.log", "flodl.optim"])
def test_what_must_start_fast_imports_no_torch(module):
    heavy = "{'torch', 'numpy', 'safetensors'}"
    code = f"import sys, {module}; dir({module}); sys.exit(str({heavy} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


def environment_uses(path: Path) -> Iterator[tuple[int, bool]]:
    """Give each use of the environment: its line, and whether it only hands it to a child process."""
    text = path.read_text()
    if "environ" not in text and "getenv" not in text:
        return
    tree = ast.parse(text)
    handed_on = set()
    for node in ast.walk(tree):
        written = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        copied = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict"
        if written:
            handed_on.add(id(node.value))
        elif copied and len(node.args) == 1:
            handed_on.add(id(node.args[0]))
        elif isinstance(node, ast.Dict):
            handed_on |= {id(value) for key, value in zip(node.keys, node.values) if key is None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"):
            yield node.lineno, id(node) in handed_on
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            names = {alias.name for alias in node.names}
            if names & {"environ", "environb", "getenv"}:
                yield node.lineno, False


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_the_environment_is_read_in_one_file(path):
    """Elsewhere, the command line alone may touch it: to write for its children, or to copy it for one."""
    if module_name(path) == "flodl.core.environment":
        return
    for line, handed_on in environment_uses(path):
        assert handed_on, f"{module_name(path)}:{line} reads the environment; read it in core/environment.py"
        assert package_of(module_name(path)) == "cli", f"{module_name(path)}:{line} touches the environment"


def test_every_variable_that_is_read_is_listed():
    environment = importlib.import_module("flodl.core.environment")
    read = set(re.findall(r'environ\.get\("(\w+)"\)', inspect.getsource(environment)))
    listed = set(re.findall(r"^\| `(\w+)`", environment.__doc__, flags=re.MULTILINE))
    assert read == listed


def test_the_drawn_tree_of_errors_is_the_tree_of_errors():
    drawn: dict[str, str | None] = {}
    trail: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+Error) ", line)
        if found:
            depth = len(found[1]) // 4
            trail = [*trail[:depth], found[2]]
            drawn[found[2]] = trail[-2] if depth else None
    classes = [
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if value.__module__ == errors.__name__
    ]
    tree = {cls.__name__: cls.__base__.__name__ if cls.__base__ is not Exception else None for cls in classes}
    assert drawn == tree
    core = importlib.import_module("flodl.core")
    assert set(tree) <= set(core.__all__)
