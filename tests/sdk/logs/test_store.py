"""Log stores by their URL, and who knows what kind they are."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from scheduler_project.sdk.logs.folder import FolderLogStore
from scheduler_project.sdk.logs.store import folder_of, open_log_store
from tests.support.packages import PACKAGES
from tests.support.processes import CHECKOUT


def test_a_store_is_named_by_its_url(tmp_path: Path) -> None:
    found = open_log_store(f"file://{tmp_path}")
    assert isinstance(found, FolderLogStore) and found.root == tmp_path
    with pytest.raises(ValueError, match="not known"):
        open_log_store("ftp://host/folder")


def test_only_an_absolute_folder_of_this_machine_is_a_folder_store() -> None:
    assert folder_of("file:///srv/my%20logs") == "/srv/my logs"
    for url in ("file://host/logs", "file:logs", ""):
        assert folder_of(url) == ""
        with pytest.raises(ValueError, match="file:///an/absolute/folder"):
            open_log_store(url)


def test_a_store_need_not_be_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "scheduler_project.sdk.logs.store.open_log_store", lambda _: SimpleNamespace(folder=None)
    )
    assert folder_of("s3://bucket/logs") == ""


def test_nobody_else_knows_that_it_is_a_folder() -> None:
    """Another kind of store is a module beside this one, and a line in `open_log_store`."""
    sources = [
        path for top in PACKAGES for path in (CHECKOUT / top).rglob("*.py") if path.parent.name != "logs"
    ]
    assert len(sources) > 200
    assert [path for path in sources if re.search(r"FolderLogStore|logs\.folder", path.read_text())] == []


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    store = FolderLogStore(tmp_path / "logs")
    store.check()
    assert store.folder == tmp_path / "logs" and list(store.folder.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        FolderLogStore(tmp_path / "file" / "logs").check()
