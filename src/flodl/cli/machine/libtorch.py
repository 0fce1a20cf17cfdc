"""Find libtorch in a torch wheel or an unpacked archive; its folders, facts and environment variables.

Variants: `python` is in the torch of the running Python, `torch/<build>` in a build that `fdl setup`
installed, `precompiled/<name>` in an archive that `fdl libtorch download` unpacked, `builds/<name>` is what
`fdl libtorch build` compiled. A path means that folder.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from flodl.core.errors import SetupError
from flodl.core.paths import suggestion

from .builds import BUILDS
from .hardware import read_or_empty
from .store import Store

THIS_PYTHON = "python"


@dataclass(frozen=True)
class Libtorch:
    """One libtorch folder."""

    variant: str
    root: Path

    @property
    def include(self) -> tuple[Path, ...]:
        """The include folders."""
        return (self.root / "include", self.root / "include/torch/csrc/api/include")

    @property
    def lib(self) -> Path:
        """The folder with the libraries."""
        return self.root / "lib"

    @property
    def cmake(self) -> Path:
        """The prefix for CMake's `find_package(Torch)`."""
        return self.root / "share/cmake"

    @property
    def library_path(self) -> tuple[Path, ...]:
        """The folders for the loader; a CUDA wheel has the CUDA libraries in packages next to torch."""
        return (self.lib, *sorted(self.root.parent.glob("nvidia/*/lib")))

    @property
    def version(self) -> str | None:
        """The version with the build: `2.13.0+cu130`."""
        found = self._in_version_file(r"^__version__ = ['\"](.+?)['\"]")
        return found or read_or_empty(self.root / "build-version") or self.notes().get("torch")

    @property
    def build(self) -> str | None:
        """The build according to the version, or None."""
        return (self.version or "").partition("+")[2] or None

    @property
    def cuda(self) -> str | None:
        """The version of CUDA that it was built with."""
        found = self._in_version_file(r"^cuda\b.*= ['\"](.+?)['\"]")
        from_notes = self.notes().get("cuda")
        return found or (from_notes if from_notes != "none" else None)

    @property
    def archs(self) -> str:
        """The compute capabilities that it supports."""
        known = {build.name: build for build in BUILDS}.get(self.build or "")
        return self.notes().get("archs") or (" ".join(known.capabilities) if known and known.cuda else "cpu")

    @property
    def source(self) -> str | None:
        """Its origin: `wheel`, or the URL of an archive."""
        return "wheel" if (self.root / "version.py").is_file() else self.notes().get("source")

    def notes(self) -> dict[str, str]:
        """Return the facts in `.arch`, written when an archive was unpacked."""
        return dict(re.findall(r"^(\w+)=(.*)$", read_or_empty(self.root / ".arch"), flags=re.MULTILINE))

    def exports(self) -> dict[str, str]:
        """Return the environment variables for CMake, tch and the loader."""
        loader = {"darwin": "DYLD_LIBRARY_PATH", "win32": "PATH"}.get(sys.platform, "LD_LIBRARY_PATH")
        return {
            "LIBTORCH": str(self.root),
            "LIBTORCH_CXX11_ABI": "1",
            "CMAKE_PREFIX_PATH": str(self.cmake),
            loader: os.pathsep.join(map(str, self.library_path)),
        }

    def facts(self) -> dict[str, object]:
        """Return all facts for `--json`."""
        return {
            "variant": self.variant,
            "path": str(self.root),
            "version": self.version,
            "cuda": self.cuda,
            "archs": self.archs,
            "source": self.source,
            "include": [str(folder) for folder in self.include],
            "lib": str(self.lib),
            "cmake_prefix": str(self.cmake),
            "environment": self.exports(),
        }

    def _in_version_file(self, pattern: str) -> str | None:
        found = re.search(pattern, read_or_empty(self.root / "version.py"), re.MULTILINE)
        return found[1] if found else None


def variants(store: Store) -> list[Libtorch]:
    """Return every libtorch, that of this Python first."""
    found = [one for one in [of_this_python()] if one]
    for build in store.installed():
        found += [Libtorch(f"torch/{build}", folder) for folder in _wheels_in(store.environment(build))]
    for group in ("precompiled", "builds"):
        folders = sorted((store.root / "libtorch" / group).glob("*/lib"))
        found += [Libtorch(f"{group}/{lib.parent.name}", lib.parent) for lib in folders]
    return [libtorch for libtorch in found if libtorch.lib.is_dir()]


def active_variant(store: Store) -> str | None:
    """Return the active variant: the one that was activated, else that of this Python, else None."""
    return store.active("libtorch") or (THIS_PYTHON if of_this_python() else None)


def active(store: Store) -> Libtorch:
    """Return the active libtorch."""
    name = active_variant(store)
    if name is None:
        raise SetupError(
            "no libtorch is active, and this Python has no torch. Install torch with `fdl setup`, or an "
            "archive with `fdl libtorch download`."
        )
    return find(store, name)


def find(store: Store, name: str) -> Libtorch:
    """Return the variant with this name, or the libtorch in the folder with this path."""
    known = {libtorch.variant: libtorch for libtorch in variants(store)}
    if name in known:
        return known[name]
    if os.path.isabs(name) and (Path(name) / "lib").is_dir():
        return Libtorch(name, Path(name))
    raise SetupError(f"there is no libtorch {name!r}. {suggestion(name, known, known_as='variants')}")


def of_this_python() -> Libtorch | None:
    """Return the libtorch of the torch that this Python would import, without importing it."""
    spec = find_spec("torch")
    for folder in list(spec.submodule_search_locations or ())[:1] if spec else ():
        if (Path(folder) / "lib").is_dir():
            return Libtorch(THIS_PYTHON, Path(folder))
    return None


def _wheels_in(environment: Path) -> list[Path]:
    site = "Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages"
    return sorted(environment.glob(f"{site}/torch"))[:1]
