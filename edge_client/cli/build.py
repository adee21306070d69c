"""`edge-client build`: an engine ahead of time, with weights that this device takes."""

from __future__ import annotations

import shutil
from typing import Any

from rich.markup import escape

from edge_client.cli.doctor import opened_decoder
from edge_client.cli.options import err, out, say, with_options
from edge_client.decoder.providers import AUTO, PROVIDERS
from edge_client.decoder.runtime import cache_folder
from edge_client.decoder.threads import step_ms
from edge_client.errors import ProviderError, described
from edge_client.pull.bundle import pull_bundle
from edge_client.pull.variants import ladder, offered
from edge_client.settings import EdgeSettings
from memory3.channel import open_channel
from memory3.files.bundle import Bundle, replace_folder
from memory3.printable import printable
from memory3.runtime.backend import DecoderBackend
from protos.memory.v1 import models_pb2_grpc

REFUSED = ("UNSUPPORTED_GRAPH", "LOAD_FAILED")
"""Reasons of a provider's error for which a graph of other weights may do."""


@with_options("bundle", "provider", "service")
def build(given: dict[str, Any]) -> None:
    """Build TensorRT's engine, or measure the best number of threads.

    Building takes minutes. An engine fits one bundle, context, TensorRT version and GPU. It is stored in the bundle's
    folder `cache`; delete that folder to build it again.

    TensorRT's releases differ in the weights that they take. With --service, where the bundle's graph is refused, the
    service's bundles of other precisions are fetched and tried, fewest bits first; the first that runs replaces it.
    """
    settings = EdgeSettings(**given)
    wanted = settings.provider
    if wanted == AUTO:
        wanted = next((p.name for p in PROVIDERS.values() if p.builds_engine and not p.missing()), wanted)
    bundle = Bundle.open(settings.bundle)
    try:
        graph, took_ms = _built(bundle, settings, wanted)
    except ProviderError as error:
        if error.reason not in REFUSED or "service" not in settings.model_fields_set:
            raise
        bundle, graph, took_ms = _other_rung(bundle, settings, wanted, error)
    made = f"{bundle.manifest.precision}, {graph.threads} thread(s), {took_ms:.1f} ms a token"
    out.print(f"{graph.provider}, {made}; kept in {cache_folder(bundle.decoder)}", soft_wrap=True)
    if graph.warning:
        say(graph.warning, "yellow")


def _built(bundle: Bundle, settings: EdgeSettings, provider: str) -> tuple[DecoderBackend, float]:
    """The bundle's decoder, opened, and its milliseconds a token."""
    what = f"{provider}, {bundle.manifest.precision}"
    with err.status(f"{what}: opening {escape(printable(str(bundle.decoder)))}, which builds what is missing"):
        graph = opened_decoder(bundle.decoder, settings, provider)
        return graph, step_ms(graph)


def _other_rung(
    bundle: Bundle, settings: EdgeSettings, provider: str, error: ProviderError
) -> tuple[Bundle, DecoderBackend, float]:
    """The service's first bundle of another precision that the provider takes, now in the place of `bundle`.

    What was refused is removed; `bundle` stays where none is taken. Raises ProviderError with every refusal.
    """
    place, refusals = bundle.folder.absolute(), {bundle.manifest.precision: error}
    with open_channel(settings.channel) as channel:
        found = offered(models_pb2_grpc.ModelsStub(channel), settings.channel)
    for variant in ladder(found, provider, refusals):
        say(f"{provider} refuses the last one ({described(error)}); fetching {variant.precision}", "yellow")
        beside = place.with_name(f"{place.name}-{variant.precision}")
        other = pull_bundle(settings.channel, beside, precision=variant.precision)
        try:
            graph, took_ms = _built(other, settings, provider)
        except ProviderError as refused:
            shutil.rmtree(beside)
            if refused.reason not in REFUSED:
                raise
            refusals[variant.precision] = error = refused
            continue
        replace_folder(beside, place)
        return Bundle.open(place), graph, took_ms
    tried = "; ".join(f"{precision}: {described(one)}" for precision, one in refusals.items())
    raise ProviderError(f"provider {provider} takes none of the service's bundles: {tried}", reason=error.reason)
