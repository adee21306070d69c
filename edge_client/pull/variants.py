"""Which of a service's bundles suits this device: all of them read the same memories, and decode at different speeds.

half        computes in float16: for CUDA and TensorRT; a CPU converts at every step
cpu_decoder has a decoder of the CPU's own operators
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from edge_client.decoder.providers import AUTO, PROVIDERS, check_name
from edge_client.errors import RetrievalError
from edge_client.pull.transfer import CALL_S
from edge_client.wire.channel import named_errors
from memory3.channel import ChannelSettings
from memory3.errors import InvalidInput
from protos.memory.v1 import models_pb2, models_pb2_grpc

_HALF = "-half"


@dataclass(frozen=True)
class Variant:
    """A bundle of a service. id: SHA-256 of its manifest; precision: of its decoder's weights, as "int4-half"."""

    id: str
    precision: str
    cpu_decoder: bool

    @property
    def half(self) -> bool:
        """Whether it computes in float16."""
        return self.precision.endswith(_HALF)

    @property
    def bits(self) -> int:
        """Bits of most of its weights."""
        found = re.match(r"[a-z]+(\d+)", self.precision)
        return int(found[1]) if found else 0


def offered(stub: models_pb2_grpc.ModelsStub, channel: ChannelSettings) -> list[Variant]:
    """The bundles that a service offers, its default first; none of a service that is too old to list them."""
    try:
        with named_errors(channel.address, CALL_S):
            found = stub.Describe(models_pb2.DescribeRequest(), timeout=CALL_S, metadata=channel.metadata)
    except RetrievalError as error:
        if error.reason != "INCOMPATIBLE":
            raise
        return []
    return [Variant(one.id, one.precision, one.cpu_decoder) for one in found.bundles]


def chosen(variants: Sequence[Variant], provider: str = AUTO, precision: str = "") -> Variant | None:
    """The one of this precision, or else the one that the provider runs fastest; None where none is listed.

    Of several that suit as well, the first. provider: "auto" is the first that can be had on this machine. Raises
    InvalidInput for a precision that is not offered.
    """
    if precision:
        for variant in variants:
            if variant.precision == precision:
                return variant
        there = ", ".join(variant.precision for variant in variants) or "its default bundle only"
        raise InvalidInput(f"the service offers no bundle of precision {precision!r}; it has {there}")
    half = computes_in_half(provider)
    return min(variants, key=lambda one: (one.half != half, not half and not one.cpu_decoder), default=None)


def ladder(variants: Sequence[Variant], provider: str, refused: Collection[str]) -> list[Variant]:
    """What is left to try where the provider refuses the graphs of these precisions: what suits it best, then few bits.

    TensorRT's releases differ in the integer weights that they take; float16 it always takes.
    """
    half = computes_in_half(provider)
    left = [one for one in variants if one.precision not in refused]
    return sorted(left, key=lambda one: (one.half != half, one.bits))


def computes_in_half(provider: str) -> bool:
    """Whether the provider, or what `auto` takes on this machine, is faster in float16."""
    check_name(provider)
    if provider != AUTO:
        return PROVIDERS[provider].half
    return next((each.half for each in PROVIDERS.values() if each.automatic and not each.missing()), False)
