"""What goes into an archive: labels, members, and weights told by their content."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from servekit.errors import ModelError
from servekit.system import labels
from servekit.system.archives.members import Members
from servekit.system.model_files import weights


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("l.txt", "zero\n one \nzwölf\n\n", {"0": "zero", "1": "one", "2": "zwölf"}),
        ("l.txt", "a\n\nc", {"0": "a", "1": "", "2": "c"}),
        ("l.txt", "a\r\nb\r\n", {"0": "a", "1": "b"}),
        ("l.JSON", '["a", "b"]', {"0": "a", "1": "b"}),
        ("l.json", '{"0": "a", "07": "b"}', {"0": "a", "7": "b"}),
        ("l.json", '{"0": ["n01440764", "tench"]}', {"0": "tench"}),
    ],
)
def test_labels(tmp_path: Path, name: str, text: str, expected: dict[str, str]) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert labels.read(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("l.txt", b"", "is empty"),
        ("l.txt", b"\n\n", "is empty"),
        ("l.txt", b"\xff", "is not UTF-8"),
        ("l.json", b"{", "neither a JSON list"),
        ("l.json", b'{"a": "b"}', "neither a JSON list"),
        ("l.json", b'{"0": []}', "neither a JSON list"),
        ("l.json", b"3", "neither a JSON list"),
        ("l.json", b"[1, {}]", "neither a JSON list"),
        ("l.json", b'{"-1": "a"}', "neither a JSON list"),
        ("l.json", b'{"0": 5}', "neither a JSON list"),
        ("none.txt", None, "No such file"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, name: str, content: bytes | None, told: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=told):
        labels.read(tmp_path / name)


def test_members_keep_a_folders_tree_without_its_caches(tmp_path: Path) -> None:
    for name in ("b.py", "sub/a.py", "__pycache__/b.pyc", "sub/.git/x", ".DS_Store"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    members = Members()
    members.add_tree(tmp_path, "tree", "extra file")
    assert list(members.files) == ["tree/b.py", "tree/sub/a.py"]
    members.check()


def test_all_that_is_wrong_with_members(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    members = Members()
    assert members.add("a", tmp_path / "a", "weights") == "a"
    members.add("a", b"", "labels")
    members.add("b", tmp_path / "nothing", "model file")
    members.add("c", tmp_path, "example")
    with pytest.raises(ModelError) as caught:
        members.check()
    assert caught.value.message.startswith("3 problems:")
    twice = f"labels: a is in the archive already (from {tmp_path}/a), and would come from servekit itself again"
    assert twice in caught.value.message
    assert f"model file: {tmp_path}/nothing does not exist." in caught.value.message
    assert f"example: {tmp_path} is not a file." in caught.value.message
    assert members.files["a"] == tmp_path / "a", "the first stays"


def test_a_tree_follows_links_but_not_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "table.csv").touch()
    (tmp_path / "tree" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "tree" / "circle").symlink_to(tmp_path / "tree")
    (tmp_path / "tree" / "file.py").symlink_to(tmp_path / "elsewhere" / "table.csv")
    members = Members()
    members.add_tree(tmp_path / "tree", "t", "extra file")
    assert list(members.files) == ["t/file.py", "t/linked/table.csv"]
    members.check()


def test_what_a_tree_cannot_pack_is_said_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"caf\xe9")).touch()
    (tmp_path / "back\\slash").touch()
    members = Members()
    members.add_tree(tmp_path, "t", "extra file")
    with pytest.raises(ModelError) as caught:
        members.check()
    assert caught.value.message.startswith("4 problems:")
    assert f"extra file: {tmp_path}/broken is a link to nothing." in caught.value.message
    assert f"extra file: {tmp_path}/pipe is not a file." in caught.value.message
    assert r"the name 't/caf\udce9' cannot stand in an archive" in caught.value.message
    assert r"the name 't/back\\slash' cannot stand in an archive" in caught.value.message


def test_members_that_want_one_place(tmp_path: Path) -> None:
    (tmp_path / "example").touch()
    members = Members()
    members.add("example/a.png", b"", "example")
    members.add("example", tmp_path / "example", "extra file")
    members.add("MAR-INF/servekit.json", tmp_path / "example", "extra file")
    with pytest.raises(ModelError) as caught:
        members.check()
    assert caught.value.message.startswith("2 problems:")
    assert f"example would be both a file (from {tmp_path}/example) and the folder of" in caught.value.message
    assert "would land in MAR-INF/" in caught.value.message


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name in names:
            out.writestr(name, "")
    return path


def test_weights_are_told_by_what_they_hold(tmp_path: Path) -> None:
    state = zipped(tmp_path / "script.pt", "archive/data.pkl", "archive/data/0")
    assert weights.detect(state)[0] == "state_dict"
    script = zipped(tmp_path / "state.pt", "m/data.pkl", "m/constants.pkl", "m/code/__torch__.py")
    assert weights.detect(script)[0] == "torchscript"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"\x80\x02}q\x00.", "is a pickle of torch before 1.6"),
        (b"hello", "it starts with b'he'"),
        (None, "does not exist"),
    ],
)
def test_weights_that_are_none(tmp_path: Path, content: bytes | None, told: str) -> None:
    if content is not None:
        (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(ModelError, match=told):
        weights.detect(tmp_path / "w.pt")
    with pytest.raises(ModelError, match="is not a file"):
        weights.detect(tmp_path)


def test_other_zips_and_cut_off_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no data\.pkl inside"):
        weights.detect(zipped(tmp_path / "w.pt", "a/model.onnx"))
    whole = zipped(tmp_path / "w.pt", "a/data.pkl", "a/data/0").read_bytes()
    (tmp_path / "w.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError):
        weights.detect(tmp_path / "w.pt")
