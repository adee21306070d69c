"""Run a TensorRT engine: shapes, addresses, one call. Not run by the authors, who had no GPU.

A cache's input and output get the same address, as with ONNX Runtime: the engine writes where it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edge_client.cuda_memory import CudaMemory
from edge_client.errors import EngineNotBuilt, ProviderError
from edge_client.tensorrt_api import TensorRt
from edge_client.tensorrt_profiles import Profile


class EngineRun:
    """An engine on the GPU, with one execution context for each profile. One thread at a time."""

    def __init__(self, api: TensorRt, plan: bytes, profiles: Sequence[Profile]) -> None:
        self.memory = CudaMemory()
        self._trt = api.module
        self._runtime = api.module.Runtime(api.module.Logger(api.module.Logger.ERROR))
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise EngineNotBuilt("the engine does not load on this GPU or TensorRT: build it again")
        self.profiles = tuple(profiles)
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        mode = api.module.TensorIOMode.INPUT
        self.inputs = [n for n in names if self._engine.get_tensor_mode(n) == mode]
        self.outputs = [n for n in names if n not in self.inputs]
        self._contexts = [self._context(number) for number in range(len(self.profiles))]

    def _context(self, number: int) -> Any:
        context = self._engine.create_execution_context()
        if context is None:
            raise ProviderError("no memory on the GPU for the engine's scratch space")
        context.set_optimization_profile_async(number, 0)
        self.memory.wait()
        return context

    def profile_of(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """The first profile that all shapes fit; raises ProviderError when none does."""
        for number, profile in enumerate(self.profiles):
            if all(
                low <= n <= high
                for name, (least, _, most) in profile.shapes.items()
                for low, n, high in zip(least, shapes[name], most, strict=True)
            ):
                return number
        raise ProviderError(f"no profile of the engine has these shapes: {dict(shapes)}")

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs for these inputs, copied to the host: for comparing, not for decoding."""
        held = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
        places = {name: self.memory.allocate(array.nbytes) for name, array in held.items()}
        results: dict[str, np.ndarray] = {}
        try:
            for name, array in held.items():
                self.memory.write(places[name], array)
            context = self._ready({name: a.shape for name, a in held.items()}, places)
            for name in self.outputs:
                dtype = self._trt.nptype(self._engine.get_tensor_dtype(name))
                results[name] = np.zeros(tuple(context.get_tensor_shape(name)), dtype)
                cache = name.removesuffix("_out")
                places[name] = places[cache] if cache in held else self.memory.allocate(results[name].nbytes)
            self.execute(context, places)
            for name, array in results.items():
                self.memory.read(places[name], array)
        finally:
            for address in set(places.values()):
                self.memory.free(address)
        return results

    def _ready(self, shapes: Mapping[str, Sequence[int]], places: Mapping[str, int]) -> Any:
        context = self._contexts[self.profile_of(shapes)]
        for name in self.inputs:
            if not context.set_input_shape(name, tuple(shapes[name])):
                raise ProviderError(f"the engine refuses shape {tuple(shapes[name])} of {name}")
        return context

    def execute(self, context: Any, places: Mapping[str, int]) -> None:
        """Bind every tensor's address, run on the default stream and wait."""
        for name, address in places.items():
            context.set_tensor_address(name, address)
        if not context.execute_async_v3(0):
            raise ProviderError("the engine did not run")
        self.memory.wait()
