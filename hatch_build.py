"""The build of the package: with a C compiler `memory3/codec/native` is compiled, without one it is left out."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "memory3/codec/native"


class NativeBuildHook(BuildHookInterface):
    """An editable install gets the library next to its source, a wheel holds it and is then for this platform.

    HATCH_BUILD_NO_HOOKS=true makes a wheel without it, for every platform.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile. version: `editable` or `standard`."""
        if self.target_name != "wheel":
            return
        build = _compile_module(Path(self.root) / FOLDER / "compile.py")
        editable = version == "editable"
        self._folder = None if editable else tempfile.TemporaryDirectory()
        target = Path(self._folder.name if self._folder else Path(self.root) / FOLDER) / build.LIBRARY
        if failed := build.compile_library(target):
            self.app.display_warning(f"without the compiled library, numpy decodes: {failed}")
        elif not editable:
            build_data["force_include"][str(target)] = f"{FOLDER}/{build.LIBRARY}"
            build_data["pure_python"] = False
            build_data["tag"] = build.wheel_tag()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for a wheel."""
        if getattr(self, "_folder", None):
            self._folder.cleanup()


def _compile_module(path: Path) -> ModuleType:
    """`memory3.codec.native.compile` without the package around it, whose dependencies a build does not have."""
    spec = importlib.util.spec_from_file_location("native_compile", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
