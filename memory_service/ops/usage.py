"""Which form knowledge deserves by its reads: text, memory or the weights (paper, appendix A)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from memory3.config import ModelConfig
from memory3.cost import knowledge_costs
from memory3.errors import Memory3Error
from memory_service.encoder import EncoderDescription
from memory_service.stores.store import KnowledgeBase, ReadReference, Store, UsageGroup

PAPER_BOUNDS = (0.494, 13_400.0)
"""Of the paper's model (appendix A)."""
MOST_READ = 10


@dataclass(frozen=True)
class Usage:
    """Reads of a knowledge base's references.

    bounds: reads from which a memory is the cheapest form of a reference, and from which its weights are; groups: their
    level is 0 for text, 1 for memory, 2 for weights.
    """

    bounds: tuple[float, float]
    groups: list[UsageGroup]
    most_read: list[ReadReference]


def bounds_of(description: EncoderDescription) -> tuple[float, float]:
    """The reads between which a memory of this model is the cheapest form; the paper's where it has no such reads."""
    try:
        config = ModelConfig.from_dict(json.loads(description.model_config_json))
        return knowledge_costs(config).interval or PAPER_BOUNDS
    except (Memory3Error, LookupError, TypeError, ValueError):  # no model of ours
        return PAPER_BOUNDS


def usage_of(store: Store, base: KnowledgeBase, description: EncoderDescription) -> Usage:
    """What the store counted, by the bounds of the model."""
    bounds = bounds_of(description)
    levels = [max(1, math.ceil(bounds[0])), max(2, math.ceil(bounds[1]))]
    return Usage(bounds, store.usage(base, levels), store.most_read(base, MOST_READ))
