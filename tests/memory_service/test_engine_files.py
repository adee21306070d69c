"""Harm to one file of every kind in the embedded engine's folder is named at the start, or without effect."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from memory_model.errors import Memory3Error
from memory_service.errors import StoreUnavailable
from memory_service.stores import open_store
from tests.memory_service.stored import IDENTITY, document, keys_near
from tests.memory_service.test_random_damage import content, harm, opened, written

HOW = ("flip", "truncate", "delete")


def files_by_kind(folder: Path) -> dict[str, list[Path]]:
    """Files, links and folders of parts by their names without numbers and ids."""
    kinds = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        if path.is_file() or path.is_symlink() or (path / "columns.txt").exists():
            name = re.sub(r"[0-9a-f]{3}/[0-9a-f-]{36}", "id", str(path.relative_to(folder)))
            kinds[re.sub(r"\d+(_\d+)*", "N", name)].append(path)
    return kinds


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_harm_to_any_kind_of_file_is_named_or_without_effect(tmp_path: Path) -> None:
    chance, outcomes = random.Random(1), Counter[str]()
    written("chdb", tmp_path / "whole")
    store = opened("chdb", shutil.copytree(tmp_path / "whole", tmp_path / "read", symlinks=True))
    whole = {base.name: content(store, base) for base in store.knowledge_bases()}
    store.close()
    for kind, files in files_by_kind(tmp_path / "whole").items():
        for how in HOW if files[0].is_file() else ("delete",):
            file = chance.choice(files).relative_to(tmp_path / "whole")
            shutil.rmtree(tmp_path / "harmed", ignore_errors=True)
            copy = shutil.copytree(tmp_path / "whole", tmp_path / "harmed", symlinks=True)
            if (copy / file).is_dir() and not (copy / file).is_symlink():
                shutil.rmtree(copy / file)
            else:
                harm(copy / file, chance, how)
            try:
                store = opened("chdb", copy)
            except Memory3Error:
                outcomes["the store refuses to open"] += 1
                continue
            try:
                bases = {base.name: base for base in store.knowledge_bases()}
                assert bases.keys() == whole.keys(), (kind, file, how)
                for name, base in bases.items():
                    if not base.problem:
                        assert store.check(base, deep=True) == [], (kind, file, how)
                        assert content(store, base) == whole[name], (kind, file, how)
                refused = sum(bool(base.problem) for base in bases.values())
                outcomes[f"{refused} of {len(bases)} knowledge bases refused"] += 1
            finally:
                store.close()
    print(f"{outcomes.total()} times: {dict(outcomes)}")


def test_rows_that_no_table_or_no_record_names_are_no_empty_store(tmp_path: Path) -> None:
    store = open_store(f"chdb://{tmp_path}/whole")
    store.write(store.create("kb", "", IDENTITY), [document("a", "one")])
    store.close()
    for lost, says in (("metadata/default", "tables"), ("data/default/knowledge_bases", "records")):
        copy = shutil.copytree(tmp_path / "whole", tmp_path / says, symlinks=True)
        if says == "tables":
            (copy / lost).unlink()
        else:
            for part in (copy / lost).glob("all_*"):
                shutil.rmtree(part)
        with pytest.raises(StoreUnavailable, match=rf"lost the .*{says}.* restore a backup"):
            open_store(f"chdb://{copy}")


def test_harm_to_the_record_of_migrations_is_said_in_our_words_or_mended(tmp_path: Path) -> None:
    store = open_store(f"chdb://{tmp_path}/whole")
    store.write(store.create("kb", "", IDENTITY), [document("a", "one")])
    store.close()
    part = next((tmp_path / "whole/data/default/migrations").resolve().glob("all_*"))
    for name in ("data.bin", "count.txt"):
        copy = shutil.copytree(tmp_path / "whole", tmp_path / name, symlinks=True)
        file = copy / part.relative_to(tmp_path.resolve() / "whole") / name
        harmed = bytearray(file.read_bytes())
        harmed[len(harmed) // 2] ^= 4
        file.write_bytes(harmed)
        said = ""
        try:
            store = open_store(f"chdb://{copy}")
        except Memory3Error as error:
            said = str(error)
        else:  # what the record lacks is applied again
            assert keys_near(store, store.knowledge_base("kb"), "one") == ["a"]
            store.close()
        assert not said or "damaged" in said
