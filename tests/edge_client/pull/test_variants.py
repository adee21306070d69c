"""A fleet of several kinds of devices: each fetches the bundle that it runs fastest, and all read the same memories."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from edge_client.decoder.providers import open_decoder
from edge_client.pull.bundle import pull_bundle
from edge_client.pull.variants import Variant, chosen, ladder
from memory3.channel import ChannelSettings
from memory3.digest import file_sha256
from memory3.errors import InvalidInput, ModelMismatch
from memory3.files.bundle import MANIFEST, Bundle
from memory_service.api.models import check_bundles
from memory_service.settings import Settings
from testing.programs import ran
from tests.edge_client.cli.conftest import PROGRAM
from tests.edge_client.tiny_bundle import tiny_bundle
from tests.memory_service.processes import service

INT4, HALF, FLOAT16 = Variant("a", "int4", True), Variant("b", "int4-half", False), Variant("c", "float16", False)


@pytest.mark.parametrize(
    ("variants", "provider", "precision", "expected"),
    [
        ((INT4, HALF), "cpu", "", INT4),
        ((HALF, INT4), "cpu", "", INT4),
        ((HALF, FLOAT16, INT4), "cpu", "", INT4),
        ((HALF, FLOAT16), "cpu", "", FLOAT16),
        ((HALF,), "cpu", "", HALF),
        ((INT4, HALF), "cuda", "", HALF),
        ((INT4, HALF), "tensorrt", "", HALF),
        ((FLOAT16, INT4), "cuda", "", FLOAT16),
        ((INT4, HALF), "cpu", "int4-half", HALF),
        ((INT4, HALF), "cuda", "int4", INT4),
        ((), "cuda", "", None),
    ],
)
def test_a_device_takes_what_its_provider_runs_fastest(
    variants: Sequence[Variant], provider: str, precision: str, expected: Variant | None
) -> None:
    assert chosen(variants, provider, precision) == expected


@pytest.mark.parametrize("variants", [(INT4, HALF), ()])
def test_a_precision_that_is_not_offered_is_refused(variants: Sequence[Variant]) -> None:
    with pytest.raises(InvalidInput, match=r"no bundle of precision 'int8'; it has (int4, int4-half|its default)"):
        chosen(variants, "cpu", "int8")


def test_where_a_graph_is_refused_what_suits_the_provider_with_few_bits_is_tried_first() -> None:
    int8, float16 = Variant("d", "int8-half", False), Variant("e", "float16-half", False)
    every = (INT4, float16, HALF, int8)
    assert ladder(every, "tensorrt", ["int4-half"]) == [int8, float16, INT4]
    assert ladder(every, "cpu", ["int4"]) == [HALF, int8, float16]
    assert ladder(every, "tensorrt", [one.precision for one in every]) == []


@pytest.fixture(scope="module")
def fleet(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Bundle]]:
    """A service of the tiny bundle and of one that computes in float16, and the latter."""
    variants = tmp_path_factory.mktemp("variants")
    made = tiny_bundle(tmp_path_factory.mktemp("made"), precision="float16-half")
    half = made.folder.rename(variants / "float16-half")
    settings = {"MEMORY_SERVICE_BUNDLE_VARIANTS": str(variants)}
    with service(tmp_path_factory.mktemp("service"), bundle=tiny.folder, **settings) as running:
        yield running.address, Bundle.open(half)


def test_devices_of_one_service_fetch_different_bundles_of_one_model(
    fleet: tuple[str, Bundle], tiny: Bundle, tmp_path: Path
) -> None:
    address, half = fleet
    for provider, offered in (("cpu", tiny), ("cuda", half), ("auto", tiny)):
        place = tmp_path / provider
        said = ran(PROGRAM, "pull", "--service", address, "--bundle", place, "--provider", provider)
        assert f", {offered.manifest.precision}, model" in said
        fetched = Bundle.open(place)
        assert fetched.manifest == offered.manifest
        assert (fetched.identity, fetched.manifest.embedder_id) == (tiny.identity, tiny.manifest.embedder_id)
        assert open_decoder(fetched.decoder, provider="cpu").provider == "cpu"


def test_a_bundle_that_is_there_is_not_fetched_again_and_another_one_replaces_it(
    fleet: tuple[str, Bundle], tmp_path: Path
) -> None:
    channel, place = ChannelSettings(fleet[0]), tmp_path / "bundle"
    steps: list[str] = []

    def pull(**options: str) -> str:
        steps.clear()
        return pull_bundle(channel, place, **options, progress=lambda *step: steps.append(step[2])).manifest.precision

    assert (pull(), bool(steps)) == ("float32", True)
    assert (pull(), steps) == ("float32", [])
    assert (pull(provider="cuda"), bool(steps)) == ("float16-half", True)
    assert (pull(precision="float16-half"), steps) == ("float16-half", [])
    (place / "codec.npz").write_bytes(b"changed")
    assert (pull(provider="cuda"), "codec.npz" in steps) == ("float16-half", True)
    assert Bundle.open(place).manifest.precision == "float16-half"


@pytest.fixture
def unsupported(tiny: Bundle, tmp_path: Path) -> Path:
    """A bundle whose decoder has a matrix product in bfloat16, for which ONNX Runtime has no kernel on a CPU."""
    a, b, c = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [2, 2]) for name in "abc")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "refused", [a, b], [c])
    place = Path(shutil.copytree(tiny.folder, tmp_path / "device"))
    (place / "decoder.cpu.onnx").unlink(missing_ok=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), place / "decoder.onnx"
    )
    manifest = json.loads((place / MANIFEST).read_text())
    manifest["files"].pop("decoder.cpu.onnx", None)
    written = place / "decoder.onnx"
    manifest["files"]["decoder.onnx"] = {"sha256": file_sha256(written), "bytes": written.stat().st_size}
    (place / MANIFEST).write_text(json.dumps(manifest | {"precision": "int4"}))
    return place


def test_build_takes_the_next_precision_where_the_device_refuses_the_graph(
    fleet: tuple[str, Bundle], unsupported: Path
) -> None:
    built = subprocess.run(
        [PROGRAM, "build", "--provider", "cpu", "--bundle", unsupported, "--service", fleet[0]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "UNSUPPORTED_GRAPH" in built.stderr
    assert "fetching float32" in built.stderr
    assert built.stdout.startswith("cpu, float32, ")
    assert Bundle.open(unsupported).manifest.precision == "float32"
    assert [path.name for path in unsupported.parent.iterdir()] == [unsupported.name]


def test_build_leaves_the_bundle_where_every_precision_is_refused(unsupported: Path, tmp_path: Path) -> None:
    offered = Path(shutil.copytree(unsupported, tmp_path / "service" / "bundle"))
    manifest = json.loads((offered / MANIFEST).read_text())
    (offered / MANIFEST).write_text(json.dumps(manifest | {"precision": "int8"}))
    with service(tmp_path / "service", bundle=offered) as running:
        built = subprocess.run(
            [PROGRAM, "build", "--provider", "cpu", "--bundle", unsupported, "--service", running.address],
            capture_output=True,
            text=True,
            check=False,
        )
    assert built.returncode == 1
    assert "takes none of the service's bundles: int4: UNSUPPORTED_GRAPH" in built.stderr
    assert "int8: UNSUPPORTED_GRAPH" in built.stderr
    assert Bundle.open(unsupported).manifest.precision == "int4"
    assert not list(tmp_path.glob("device-*"))


def test_build_leaves_the_bundle_where_no_service_is_named(unsupported: Path) -> None:
    before = (unsupported / MANIFEST).read_bytes()
    built = subprocess.run(
        [PROGRAM, "build", "--provider", "cpu", "--bundle", unsupported], capture_output=True, text=True, check=False
    )
    assert built.returncode == 1
    assert "UNSUPPORTED_GRAPH" in built.stderr
    assert (unsupported / MANIFEST).read_bytes() == before


def test_a_service_refuses_a_variant_of_another_model(tiny: Bundle, tmp_path: Path) -> None:
    variants = tmp_path / "variants"
    variants.mkdir()
    check_bundles(Settings(bundle=tiny.folder, bundle_variants=variants))
    tiny_bundle(tmp_path, seed=1).folder.rename(variants / "other")
    with pytest.raises(ModelMismatch):
        check_bundles(Settings(bundle=tiny.folder, bundle_variants=variants))
