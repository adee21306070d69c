"""Models that are made otherwise: trained from nothing in two stages, averaged adapters, random weights."""
