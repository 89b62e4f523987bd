"""The machine against the interpreter's own unpickler, and what a scan says about files that are in order."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch_files
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.errors import ModelError
from servekit.system.model_files import pickle_globals, pickle_opcodes, pickles
from servekit.system.model_files.pickle_machine import Result, follow
from servekit.system.model_files.pickle_values import Built, Opaque

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(-(1 << 50), 1 << 50), inner)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=20,
)


class Stub:
    """Takes part in anything, so that the interpreter's unpickler goes as far as it can."""

    def __new__(cls, *_: Any, **__: Any) -> Stub:
        return object.__new__(cls)

    def __call__(self, *_: Any, **__: Any) -> Stub:
        return self

    def append(self, _: Any) -> None: ...

    def extend(self, _: Any) -> None: ...

    def __setitem__(self, _: Any, __: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


class Recorder(pickle._Unpickler):  # type: ignore[name-defined]
    """The interpreter's own in Python: it notes the names and imports none."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.names: list[str] = []

    def find_class(self, module: str, name: str) -> Any:
        self.names.append(f"{module}.{name}")
        return Stub

    def persistent_load(self, _: Any) -> Any:
        return Stub()


def names_of(data: bytes) -> list[str]:
    recorder = Recorder(data)
    try:
        recorder.load()
    except Exception:
        return recorder.names
    return recorder.names


def test_every_opcode_is_known() -> None:
    known = set(pickle_opcodes.ARGUMENTS) | pickle_opcodes.PLAIN
    assert known == {ord(opcode.code) for opcode in pickletools.opcodes}


@given(PLAIN, st.integers(0, 5))
def test_plain_values_come_out_as_they_went_in(value: Any, protocol: int) -> None:
    result = follow(pickle.dumps(value, protocol))
    assert result.error is None
    assert not result.refused
    assert result.value == value
    assert result.end == len(pickle.dumps(value, protocol))


def test_other_values_that_torch_saves() -> None:
    value = {
        "ordered": OrderedDict(a=1),
        "counter": Counter("aab"),
        "bytes": b"x",
        "array": bytearray(b"y"),
        "set": {1, 2},
        "complex": 1j,
    }
    for protocol in (2, 3, 4, 5):
        result = follow(pickle.dumps(value, protocol))
        assert (result.error, result.refused) == (None, ())
        assert (result.value["ordered"], result.value["counter"]) == ({"a": 1}, {"a": 2, "b": 1})
        assert isinstance(result.value["set"], Opaque)


SNIPPETS = st.sampled_from(
    [
        *(b"(", b")", b"]", b"}", b"N", b"0", b"1", b"2", b"a", b"e", b"s", b"u", b"t", b"l", b"d", b"\x85", b"\x86"),
        *(b"R", b"o", b"\x81", b"\x92", b"b", b"\x93", b"\x94", b"\x8f", b"\x90", b"\x91", b"Q", b"h\x00", b"h\x01"),
        *(
            b"g0\n",
            b"p1\n",
            b"q\x00",
            b"q\x01",
            b"r\x00\x00\x00\x00",
            b"j\x01\x00\x00\x00",
            b"K\x01",
            b"I1\n",
            b"L2L\n",
        ),
        *(b"cos\nsystem\n", b"ios\nsystem\n", b"ccollections\nOrderedDict\n", b"icollections\nOrderedDict\n"),
        *(b"ctorch\nSize\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n", b"Vos\n", b"S'os'\n"),
        *(b"\x8c\x02os", b"\x8c\x06system", b"U\x02os", b"X\x02\x00\x00\x00os", b"C\x02os", b"\x80\x02", b"."),
        *(b"c__builtin__\nset\n", b"c_codecs\nencode\n", b"Pid\n", b"\x95\x01\x00\x00\x00\x00\x00\x00\x00"),
    ]
)


@settings(max_examples=1500, deadline=None)
@given(st.lists(SNIPPETS, max_size=25).map(b"".join))
def test_no_name_is_missed_that_the_interpreter_would_import(data: bytes) -> None:
    refused = [name for name in names_of(data + b".") if name not in pickle_globals.ALLOWED]
    result = follow(data + b".")
    if refused:
        assert result.refused, (data, refused)
    if result.error is None:
        assert set(refused) <= {item.name for item in result.refused}


@settings(max_examples=1500, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_have_a_result(data: bytes) -> None:
    assert isinstance(follow(data), Result)


@given(st.lists(SNIPPETS | st.binary(min_size=1, max_size=2), max_size=40).map(b"".join))
def test_any_opcodes_have_a_result(data: bytes) -> None:
    for script in (False, True):
        assert isinstance(follow(data, script=script, numbered=script), Result)


def test_names_of_torchscript_only_in_torchscript() -> None:
    data = b"\x80\x02c__torch__.torch.nn.modules.linear\nLinear\n)\x81}X\x01\x00\x00\x00nK\x03sb."
    assert [item.name for item in follow(data).refused] == ["__torch__.torch.nn.modules.linear.Linear"]
    result = follow(data, script=True)
    assert not result.refused
    assert isinstance(result.value, Built)
    assert result.value.state == {"n": 3}


def test_a_scan_says_what_was_looked_through(tmp_path: Path) -> None:
    data = torch_files.state({"w": ("FloatStorage", "0", 2, 0, [2], [1])})
    path = torch_files.save_zip(tmp_path / "w.pt", data, {"0": bytes(8)})
    assert pickles.scan(path) == ("1 pickle of w.pt looked through: no name outside the list of torch.",)
    (tmp_path / "l.pt").write_bytes(torch_files.legacy(data, {"0": (2, bytes(8))}))
    assert pickles.scan(tmp_path / "l.pt")[0].startswith("5 pickles of l.pt")
    (tmp_path / "labels.txt").write_text("cat\n")
    assert pickles.scan(tmp_path / "labels.txt") == ("labels.txt holds no pickle.",)


def test_a_file_of_torch_s_name_is_taken_for_a_pickle_without_header(tmp_path: Path) -> None:
    """torch.load unpickles whatever it does not know, and protocol 0 begins like text."""
    (tmp_path / "w.pth").write_bytes(b"cos\nsystem\n(Vtrue\ntR.")
    with pytest.raises(ModelError, match=r"'os\.system' \(byte 0\)"):
        pickles.scan(tmp_path / "w.pth")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        pickles.scan(tmp_path / "none.pt")


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=700), head=st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02", b"\x93NUMPY\x01\x00"]))
def test_a_scan_of_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, head: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.pt"
    path.write_bytes(head + data)
    try:
        assert pickles.scan(path)
    except ModelError as error:
        assert error.message
