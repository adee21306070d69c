"""What tests of local knowledge bases share: `remember` as it succeeds or fails, and a bundle of another model."""

import pytest

from memory3.files.bundle import Bundle
from tests.edge_client.cli.conftest import run
from tests.edge_client.tiny_bundle import tiny_bundle


def remembered(bundle: Bundle, *arguments: object, code: int = 0) -> str:
    result = run("remember", *arguments, "--bundle", bundle.folder)
    assert result.exit_code == code, result.output
    return result.stdout.strip()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of another model."""
    return tiny_bundle(tmp_path_factory.mktemp("other"), seed=1)
