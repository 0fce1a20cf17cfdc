"""The modules of a package as syntax trees, and a search for the definition of a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flodl.core.errors import SetupError

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """A definition and the module that contains it."""

    module: str
    file: Path
    node: Definition


@dataclass
class Source:
    """The source of one package. Each module is parsed once."""

    root: Path  # the folder of the package
    _trees: dict[str, ast.Module] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """The name of the package."""
        return self.root.name

    def file_of(self, module: str) -> Path | None:
        """Return the file of a module of this package, or None."""
        path = self.root.parent.joinpath(*module.split("."))
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
        return None

    def tree(self, module: str) -> ast.Module:
        """Return the syntax tree of a module, or an empty tree for a module outside this package."""
        if module not in self._trees:
            file = self.file_of(module) if module.split(".")[0] == self.package else None
            self._trees[module] = _parse(file) if file else ast.Module([], [])
        return self._trees[module]

    def public_names(self, module: str) -> list[str]:
        """Return the names in the `__all__` of a module."""
        for node in self.tree(module).body:
            if isinstance(node, ast.Assign) and any(_is_name(target, "__all__") for target in node.targets):
                names = ast.literal_eval(node.value)
                return [str(name) for name in names]
        return []

    def packages(self) -> list[str]:
        """Return the module names of the direct sub-packages."""
        return [f"{self.package}.{path.parent.name}" for path in sorted(self.root.glob("*/__init__.py"))]

    def find(self, module: str, name: str, *, depth: int = 8) -> Found | None:
        """Follow a name through imports to the class or function that it refers to."""
        if depth == 0:
            return None
        for node in statements(self.tree(module)):
            if isinstance(node, Definition) and node.name == name:
                file = self.file_of(module)
                assert file is not None
                return Found(module, file, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(self._target(module, node), alias.name, depth=depth - 1)
        return None

    def _target(self, module: str, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module that an import refers to."""
        if not node.level:
            return node.module or ""
        file = self.file_of(module)
        parts = module.split(".") if file and file.name == "__init__.py" else module.split(".")[:-1]
        base = parts[: len(parts) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the top-level statements, including those inside `if TYPE_CHECKING:` and `try:`."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from node.body
            yield from node.orelse


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise SetupError(f"{file} cannot be parsed as Python: {error}.") from None


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
