"""Where TensorRT's engines and timings are kept, so that minutes of building are spent once.

An engine fits one graph, one TensorRT release, one GPU architecture and one set of profiles: the folder's
name says all four, so nothing is ever used for what it was not built for.

    <root>/<graph hash>-trt<version>-sm<architecture>-<profile id>/
        engine.plan      the directly built engine      checked.json   its comparison with the CPU provider
        timing.cache     measurements for the next build
        runtime/         engines and timings of ONNX Runtime's own TensorRT provider
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_client.tensorrt_profiles import Profile, profile_id
from memory_model.digest import file_sha256

PLAN, TIMING, CHECKED, RUNTIME = "engine.plan", "timing.cache", "checked.json", "runtime"


def default_root() -> Path:
    """`memory3-edge/tensorrt` in the user's cache folder (XDG_CACHE_HOME)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "memory3-edge" / "tensorrt"


def graph_sha256(path: str | Path) -> str:
    """Hex SHA-256 over an ONNX file and its external data.

    A bundle was verified when it was opened, so its manifest's hashes are taken where there is one.
    """
    path = Path(path)
    parts = [path, *([data] if (data := path.with_name(path.name + ".data")).is_file() else [])]
    manifest = path.with_name("manifest.json")
    if manifest.is_file():
        entries = json.loads(manifest.read_text(encoding="utf-8")).get("files", {})
        hashes = [str(entries[p.name]["sha256"]) for p in parts if p.name in entries]
        if len(hashes) == len(parts):
            return hashlib.sha256("".join(hashes).encode()).hexdigest()
    return hashlib.sha256("".join(map(file_sha256, parts)).encode()).hexdigest()


@dataclass(frozen=True)
class EngineCache:
    """The place of one graph's engine. profiles: what it is built with."""

    folder: Path
    profiles: tuple[Profile, ...]

    @classmethod
    def of(
        cls,
        graph: str | Path,
        profiles: Sequence[Profile],
        *,
        version: str,
        architecture: str,
        root: Path | None = None,
    ) -> EngineCache:
        """The place for a graph. version: TensorRT's; architecture: the GPU's, such as "87" for Orin."""
        name = f"{graph_sha256(graph)[:16]}-trt{version}-sm{architecture}-{profile_id(profiles)}"
        return cls((root or default_root()) / name, tuple(profiles))

    @property
    def plan(self) -> Path:
        """The directly built engine."""
        return self.folder / PLAN

    @property
    def ready(self) -> bool:
        """Whether ONNX Runtime's provider finds an engine here and need not build one."""
        return any((self.folder / RUNTIME).glob("*.engine"))

    def provider_options(self) -> dict[str, Any]:
        """Options of ONNX Runtime's TensorRT provider: explicit profiles, engines and timings kept here."""
        place = self.folder / RUNTIME
        place.mkdir(parents=True, exist_ok=True)
        # One profile: the runtime does not choose between several, and the last covers single steps too.
        profile = self.profiles[-1]
        return {
            "device_id": "0",
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(place),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(place),
            "trt_profile_min_shapes": profile.text(0),
            "trt_profile_opt_shapes": profile.text(1),
            "trt_profile_max_shapes": profile.text(2),
            "trt_fp16_enable": "0",  # the file's own types are kept; half precision breaks norms and softmax
            "trt_builder_optimization_level": "3",
        }

    def timing(self) -> bytes:
        """What an earlier build measured; empty before the first."""
        path = self.folder / TIMING
        return path.read_bytes() if path.is_file() else b""

    def keep_timing(self, timing: bytes) -> None:
        """Keep measurements, also those of a build whose engine is refused."""
        self._write(TIMING, timing)

    def keep(self, plan: bytes, checked: Mapping[str, Any]) -> None:
        """Keep an engine that was compared with the CPU provider; `checked` says with what result."""
        self._write(PLAN, plan)
        self._write(CHECKED, (json.dumps(dict(checked), indent=1, sort_keys=True) + "\n").encode())

    def refuse(self) -> None:
        """Remove an engine, so that nobody loads it."""
        for name in (PLAN, CHECKED):
            (self.folder / name).unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f"{name}.partial"
        partial.write_bytes(content)
        partial.replace(self.folder / name)
