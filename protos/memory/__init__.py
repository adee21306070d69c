"""Package `memory` of the contract; the version is the folder below."""
