"""Files that would run code when loaded. None does here, and each is refused with one error that says why.

The payload opens a file for writing; that the file is not there afterwards is what these tests are about, and
that it would be there is shown with the interpreter's own unpickler.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch_files
from torch_files import integer, mapping, text

from servekit.errors import ModelError
from servekit.system.model_files import checkpoint, pickle_in_file, pickle_stack, pickles, weights


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "the payload was executed"


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def arguments(path: str) -> bytes:
    return b"(" + text(path) + text("w") + b"t"


def short(value: str) -> bytes:
    """SHORT_BINUNICODE."""
    return b"\x8c" + bytes([len(value)]) + value.encode()


P2, P4 = b"\x80\x02", b"\x80\x04"
OPEN = b"cio\nopen\n"
DICT_BUILD = b"}(" + text("x") + integer(1) + b"u"

BARE: dict[str, tuple[Callable[[str], bytes], str]] = {
    **{
        f"protocol {number}": (lambda path, number=number: pickle.dumps(Evil(path), number), r"'(_?io|builtins)\.open'")
        for number in range(6)
    },
    **{
        f"protocol {number}, deep inside": (
            lambda path, number=number: pickle.dumps({"w": [({"x": (Evil(path),)},)]}, number),
            r"'(_?io|builtins)\.open'",
        )
        for number in range(6)
    },
    "GLOBAL, REDUCE": (lambda path: P2 + OPEN + arguments(path) + b"R.", r"'io\.open' \(byte 2\)"),
    "GLOBAL without a call: importing is enough": (lambda path: P2 + b"cantigravity\nx\n.", r"'antigravity\.x'"),
    "GLOBAL, thrown away": (lambda path: P2 + OPEN + arguments(path) + b"R0N.", r"'io\.open'"),
    "GLOBAL, under a mark that is thrown away": (lambda path: P2 + b"(" + OPEN + b"1N.", r"'io\.open'"),
    "GLOBAL, only in the memo": (lambda path: P2 + OPEN + b"q\x000h\x00" + arguments(path) + b"R.", r"'io\.open'"),
    "GLOBAL, protocol 0 without header": (lambda path: OPEN + b"(V" + path.encode() + b"\nVw\ntR.", r"byte 0\)"),
    "GLOBAL with escapes that pickletools resolves": (lambda path: P2 + b"c\\x69o\nopen\n.", r"x69o\.open'"),
    "STACK_GLOBAL": (lambda path: P4 + short("io") + short("open") + b"\x93" + arguments(path) + b"R.", r"'io\.open'"),
    "STACK_GLOBAL through the memo": (
        lambda path: P4 + short("io") + b"\x940" + short("open") + b"\x940h\x00h\x01\x93" + arguments(path) + b"R.",
        r"'io\.open'",
    ),
    "STACK_GLOBAL with DUP": (lambda path: P4 + short("code") + b"2\x93.", r"'code\.code'"),
    "STACK_GLOBAL of text lines": (lambda path: P4 + b"Vio\nVopen\n\x93" + arguments(path) + b"R.", r"'io\.open'"),
    "STACK_GLOBAL of old strings": (lambda path: P4 + b"U\x02ioS'open'\n\x93.", r"'io\.open'"),
    "STACK_GLOBAL of long strings": (
        lambda path: P4 + b"\x8d" + struct.pack("<Q", 2) + b"io" + text("open") + b"\x93" + arguments(path) + b"R.",
        r"'io\.open'",
    ),
    "STACK_GLOBAL of bytes": (lambda path: P4 + b"C\x02ioC\x04open\x93.", "put together"),
    "STACK_GLOBAL of a call's answer": (
        lambda path: P4 + b"c_codecs\nencode\n" + text("io") + b"\x85R" + short("open") + b"\x93.",
        "put together",
    ),
    "INST": (lambda path: b"(" + text(path) + text("w") + b"iio\nopen\n.", r"'io\.open'"),
    "OBJ": (lambda path: P2 + b"(" + OPEN + text(path) + text("w") + b"o.", r"'io\.open'"),
    "NEWOBJ": (lambda path: P2 + b"csubprocess\nPopen\n" + arguments(path) + b"\x81.", r"'subprocess\.Popen'"),
    "NEWOBJ_EX": (lambda path: P4 + b"cio\nFileIO\n" + arguments(path) + b"}\x92.", r"'io\.FileIO'"),
    "NEWOBJ_EX with keywords": (
        lambda path: P4 + b"cio\nopen\n)" + mapping({"file": text(path), "mode": text("w")}) + b"\x92.",
        r"'io\.open'",
    ),
    "BUILD of a refused class": (lambda path: P2 + b"c__main__\nNet\n)\x81" + DICT_BUILD + b"b.", r"'__main__\.Net'"),
    "BUILD of an allowed function": (
        lambda path: P2 + b"ctorch._utils\n_rebuild_tensor_v2\n" + DICT_BUILD + b"b.",
        "sets attributes of something that has none",
    ),
    "BUILD of a class with slots": (
        lambda path: P2 + b"ctorch\nSize\nN" + DICT_BUILD + b"\x86b.",
        "sets attributes of something that has none",
    ),
    "BUILD of a dict": (lambda path: P2 + b"}" + DICT_BUILD + b"b.", "sets attributes"),
    "EXT1": (lambda path: P2 + b"\x82\xf0" + arguments(path) + b"R.", "copyreg extension code 240"),
    "EXT2": (lambda path: P2 + b"\x83\xf0\x00" + arguments(path) + b"R.", "copyreg extension code 240"),
    "EXT4": (lambda path: P2 + b"\x84\xf0\x00\x00\x00" + arguments(path) + b"R.", "copyreg extension code 240"),
    "PERSID": (lambda path: b"Psomething\n.", "persistent id that is no storage"),
    "BINPERSID of text": (lambda path: P2 + text("package") + b"Q.", "persistent id that is no storage"),
    "BINPERSID of a call": (lambda path: P2 + OPEN + arguments(path) + b"RQ.", r"'io\.open'"),
    "BINPERSID of a module's class": (
        lambda path: P2 + b"(" + text("module") + OPEN + b"NNtQ" + arguments(path) + b"R.",
        r"'io\.open'",
    ),
    "a storage of a strange class": (
        lambda path: P2 + b"(" + text("storage") + OPEN + text("0") + text("cpu") + integer(1) + b"tQ.",
        r"'io\.open'",
    ),
    "a dotted name of a module that is allowed": (
        lambda path: P4 + short("torch.serialization") + short("os.system") + b"\x93" + text("true") + b"\x85R.",
        r"'torch\.serialization\.os\.system'",
    ),
    "a dotted name as text": (lambda path: P4 + b"ctorch._utils\nsys.modules\n.", r"'torch\._utils\.sys\.modules'"),
    "a dotted name of an allowed class": (
        lambda path: P4 + b"ccollections\nOrderedDict.fromkeys\n.",
        r"'collections\.OrderedDict\.fromkeys'",
    ),
    "an allowed name cut in another place": (
        lambda path: P4 + short("torch") + short("_utils._rebuild_tensor_v2") + b"\x93.",
        r"'torch\._utils\._rebuild_tensor_v2' \(byte",
    ),
    "a name that begins like an allowed one": (
        lambda path: P4 + short("torch._utils") + short("_rebuild_tensor_v2\n") + b"\x93.",
        r"is not on the list",
    ),
    "__builtin__.eval": (lambda path: P2 + b"c__builtin__\neval\n" + text("1") + b"\x85R.", r"'__builtin__\.eval'"),
    "builtins.exec": (lambda path: P4 + b"cbuiltins\nexec\n" + text("1") + b"\x85R.", r"'builtins\.exec'"),
    "builtins.getattr": (
        lambda path: P4 + b"cbuiltins\ngetattr\n(ctorch\nSize\n" + text("__class__") + b"tR.",
        r"'builtins\.getattr'",
    ),
    "builtins.__import__": (lambda path: P4 + b"cbuiltins\n__import__\n" + text("os") + b"\x85R.", "__import__"),
    "numpy's _reconstruct": (
        lambda path: P2 + b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n)tR.",
        r"'numpy\.core\.multiarray\._reconstruct'",
    ),
    "numpy's scalar": (lambda path: P2 + b"cnumpy._core.multiarray\nscalar\n.", r"'numpy\._core\.multiarray\.scalar'"),
    "torch.load through a storage": (
        lambda path: P2 + b"ctorch.storage\n_load_from_bytes\nC\x01x\x85R.",
        r"'torch\.storage\._load_from_bytes'",
    ),
    "torch.hub.load": (lambda path: P2 + b"ctorch.hub\nload\n.", r"'torch\.hub\.load'"),
    "torch.nn.Linear": (lambda path: P2 + b"ctorch.nn.modules.linear\nLinear\n)\x81.", "Linear"),
    "TorchScript's names outside of it": (lambda path: P2 + b"c__torch__\nNet\n)\x81.", r"'__torch__\.Net'"),
    "TorchScript's helpers outside of it": (
        lambda path: P2 + b"ctorch.jit._pickle\nbuild_intlist\n.",
        r"'torch\.jit\._pickle\.build_intlist'",
    ),
    "functools.partial": (lambda path: P2 + b"cfunctools\npartial\n" + OPEN + b"\x85R.", r"(?s)partial.*'io\.open'"),
    "pickle.loads": (lambda path: P2 + b"c_pickle\nloads\nC\x01.\x85R.", r"'_pickle\.loads'"),
    "copyreg._reconstructor": (lambda path: b"ccopy_reg\n_reconstructor\n.", r"'copy_reg\._reconstructor'"),
    "as a key": (lambda path: P2 + b"}" + OPEN + b"Ns.", r"'io\.open'"),
    "in a set": (lambda path: P4 + b"\x8f(" + OPEN + b"\x90.", r"'io\.open'"),
    "in a frozenset": (lambda path: P4 + b"(" + OPEN + b"\x91.", r"'io\.open'"),
    "among an OrderedDict's arguments": (
        lambda path: P2 + b"ccollections\nOrderedDict\n](" + text("k") + OPEN + b"\x86e\x85R.",
        r"'io\.open'",
    ),
    "as a tensor's hooks": (
        lambda path: torch_files.state({"w": ("FloatStorage", "0", 1, 0, [1], [1])}).replace(
            b"ccollections\nOrderedDict\n", OPEN
        ),
        r"'io\.open'",
    ),
    "as a tensor subclass": (
        lambda path: (
            P2 + b"ctorch._tensor\n_rebuild_from_type_v2\n(" + OPEN + b"ctorch\nTensor\n" + arguments(path) + b"NtR."
        ),
        r"'io\.open'",
    ),
    "after an opcode that does not exist": (lambda path: P2 + OPEN + b"\xff.", r"(?s)'io\.open'.*no opcode 0xff"),
    "after what cannot be followed": (
        lambda path: P2 + b"R" + OPEN + b"cos\nsystem\n.",
        r"(?s)'io\.open'.*'os\.system'",
    ),
    "the end is missing": (lambda path: P2 + OPEN + arguments(path) + b"R", r"(?s)'io\.open'.*ends in the middle"),
}

MALFORMED: dict[str, tuple[bytes, str]] = {
    "bytes after the end": (P2 + b"}.extra", "5 bytes follow the end of the pickle"),
    "a second pickle": (P2 + b"}." + P2 + b"}.", "follow the end of the pickle"),
    "no end": (P2 + b"}", "ends in the middle"),
    "empty stack": (P2 + b".", "takes more from its stack"),
    "no mark": (P2 + b"t.", "takes more from its stack"),
    "no memo": (P2 + b"h\x07.", "never put into its memo"),
    "protocol 6": (b"\x80\x06}.", "no pickle protocol 6"),
    "a string of four gigabytes": (P2 + b"X\xff\xff\xff\xff", "ends in the middle"),
    "a string of 2^63 bytes": (P4 + b"\x8d" + b"\xff" * 8, "ends in the middle"),
    "an integer of a kilobyte and more": (
        P2 + b"\x8b\x00\x10\x00\x00" + b"\x01" * 4096 + b".",
        "integer of 4096 bytes",
    ),
    "digits without end": (b"L" + b"9" * 5000 + b"L\n.", "cannot be read"),
    "a line without end": (b"V" + b"x" * 100_000 + b"\n.", "a line is longer"),
    "a memo place of four billion": (P2 + b"Nr\xff\xff\xff\xff0j\xfe\xff\xff\xff.", "never put into its memo"),
    "a negative memo place": (b"Np-1\n.", "no sensible number"),
    "a buffer from outside": (b"\x80\x05\x97.", "buffer from outside"),
    "bad text": (P2 + b"X\x01\x00\x00\x00\xff.", "cannot be read"),
    "a call of a number": (P2 + b"K\x01)R.", "calls something that is no function"),
    "a call of a type": (P2 + b"ctorch\nFloatStorage\n)R.", "which no checkpoint does"),
    "keywords for what takes none": (P4 + b"ctorch\nSize\n)}X\x01\x00\x00\x00aNs\x92.", "keywords"),
    "an append to a dict": (P2 + b"}Na.", "appends to something that is no list"),
    "a key for a list": (P2 + b"]NNs.", "no dict"),
    "half an item": (P2 + b"}(Nu.", "a key without a value"),
    "a list as a key": (P2 + b"}]Ns.", "no plain value"),
    "a great integer as a key": (P2 + b"}" + integer(1 << 61) + b"Ns.", "too great for a key"),
    "a tensor without a storage": (P2 + b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))\x89NtR.", "no storage"),
    "a tensor of too few arguments": (P2 + b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "cannot have"),
    "a negative size": (torch_files.state({"w": ("FloatStorage", "0", 1, 0, [-1], [1])}), "no sensible number"),
    "a negative offset": (torch_files.state({"w": ("FloatStorage", "0", 1, -4, [1], [1])}), "no sensible number"),
    "more strides than dimensions": (torch_files.state({"w": ("FloatStorage", "0", 1, 0, [1], [1, 1])}), "strides"),
    "a size beyond all bounds": (torch_files.state({"w": ("FloatStorage", "0", 1, 0, [1 << 63], [1])}), "sensible"),
}


def refused(path: Path, told: str) -> None:
    """By the scan and by the reader: one ModelError, and nothing else."""
    with pytest.raises(ModelError, match=told):
        pickles.scan(path)
    with pytest.raises(ModelError):
        checkpoint.read(path)


@pytest.mark.parametrize("case", BARE)
def test_a_bare_pickle(case: str, tmp_path: Path, canary: Path) -> None:
    build, told = BARE[case]
    path = tmp_path / "w.pkl"
    path.write_bytes(build(str(canary)))
    refused(path, told)


@pytest.mark.parametrize("case", BARE)
def test_the_same_in_a_file_of_torch(case: str, tmp_path: Path, canary: Path) -> None:
    build, told = BARE[case]
    path = torch_files.save_zip(tmp_path / "w.pt", build(str(canary)), {"0": bytes(4)})
    refused(path, told)
    weights.detect(path)


@pytest.mark.parametrize("case", BARE)
def test_the_same_in_the_old_format(case: str, tmp_path: Path, canary: Path) -> None:
    build, told = BARE[case]
    path = tmp_path / "w.pt"
    path.write_bytes(torch_files.legacy(build(str(canary)), {}))
    refused(path, r"'io\.open'" if case == "the end is missing" else told)  # what follows is taken for its end
    weights.detect(path)


@pytest.mark.parametrize("case", MALFORMED)
def test_what_cannot_be_followed(case: str, tmp_path: Path) -> None:
    data, told = MALFORMED[case]
    path = tmp_path / "w.pkl"
    path.write_bytes(data)
    started = time.monotonic()
    refused(path, told)
    assert time.monotonic() - started < 5


def test_the_payload_would_work(tmp_path: Path) -> None:
    for case in ("GLOBAL, REDUCE", "STACK_GLOBAL through the memo", "STACK_GLOBAL of text lines", "INST", "OBJ"):
        path = tmp_path / case
        pickle.loads(BARE[case][0](str(path))).close()
        assert path.exists(), case


def test_an_extension_that_is_registered_and_cached(tmp_path: Path, canary: Path) -> None:
    """The interpreter's unpickler takes a cached extension without asking find_class."""
    copyreg.add_extension("io", "open", 240)
    try:
        pickle.loads(b"\x80\x02\x82\xf0.")
        for case in ("EXT1", "EXT2", "EXT4"):
            path = tmp_path / "w.pkl"
            path.write_bytes(BARE[case][0](str(canary)))
            refused(path, "copyreg extension code 240")
    finally:
        copyreg.remove_extension("io", "open", 240)


def payload(canary: Path) -> bytes:
    return P2 + OPEN + arguments(str(canary)) + b"R."


def zip_of(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def tar_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def npy(descr: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


GOOD = P2 + b"}."
SCRIPT = {"m/data.pkl": GOOD, "m/constants.pkl": P2 + b").", "m/code/__torch__.py": b""}
EXPORTED = {"p/archive_format": b"pt2", "p/models/model.json": b"{}"}

NESTED: dict[str, Callable[[bytes], bytes]] = {
    "data.pkl": lambda evil: zip_of({"a/data.pkl": evil}),
    "data.pkl, deflated": lambda evil: zip_of({"a/data.pkl": evil}, zipfile.ZIP_DEFLATED),
    "another pickle beside data.pkl": lambda evil: zip_of({"a/data.pkl": GOOD, "a/more.pickle": evil}),
    "a member without a name for it": lambda evil: zip_of({"a/data.pkl": GOOD, "a/data/0": evil}),
    "TorchScript's constants": lambda evil: zip_of({**SCRIPT, "m/constants.pkl": evil}),
    "TorchScript's attributes": lambda evil: zip_of({**SCRIPT, "m/attributes.pkl": evil}),
    "TorchScript's sources": lambda evil: zip_of({**SCRIPT, "m/code/__torch__.py.debug_pkl": evil}),
    "TorchScript's extra files": lambda evil: zip_of({**SCRIPT, "m/extra/w.pt": zip_of({"a/data.pkl": evil})}),
    "sample inputs of .pt2": lambda evil: zip_of(
        {**EXPORTED, "p/data/sample_inputs/model.pt": zip_of({"archive/data.pkl": evil})}
    ),
    "custom objects of .pt2": lambda evil: zip_of({**EXPORTED, "p/data/constants/custom_obj_0": evil}),
    "pickled weights of .pt2": lambda evil: zip_of(
        {**EXPORTED, "p/data/weights/weight_0": torch_files.legacy(evil, {})}
    ),
    "constants of an old .pt2": lambda evil: zip_of(
        {"serialized_exported_program.json": b"{}", "serialized_constants.pt": zip_of({"constants/data.pkl": evil})}
    ),
    "compiled code of .pt2": lambda evil: zip_of(
        {"p/data/aotinductor/model/a.so": b"\x7fELF", "p/data/aotinductor/model/x.pkl": evil}
    ),
    "a zip in a zip in a zip": lambda evil: zip_of({"a": zip_of({"b": zip_of({"c.pkl": evil}, zipfile.ZIP_DEFLATED)})}),
    "a zip in a tar": lambda evil: tar_of({"w.pt": zip_of({"a/data.pkl": evil})}),
    "a tar in a zip": lambda evil: zip_of({"w": tar_of({"x": evil})}),
    "the fourth pickle of five": lambda evil: torch_files.legacy(evil, {}),
    "the fifth pickle of five": lambda evil: torch_files.legacy(GOOD, {}, keys=evil),
    "the second pickle of five": lambda evil: pickle.dumps(torch_files.MAGIC, 2) + evil,
    "torch 0.1: the object": lambda evil: tar_of(
        {"storages": P2 + b"K\x00." + P2 + b"].", "tensors": P2 + b"K\x00.", "pickle": evil}
    ),
    "torch 0.1: a storage": lambda evil: tar_of(
        {"storages": P2 + b"K\x01." + evil, "tensors": P2 + b"K\x00.", "pickle": GOOD}
    ),
    "torch 0.1: after a storage": lambda evil: tar_of(
        {
            "storages": P2
            + b"K\x02."
            + P2
            + b"(K\x01X\x03\x00\x00\x00cpuctorch\nFloatStorage\nt."
            + struct.pack("<qf", 1, 0.5)
            + evil,
            "tensors": P2 + b"K\x00.",
            "pickle": GOOD,
        }
    ),
    "torch 0.1: the views": lambda evil: tar_of(
        {"storages": P2 + b"K\x00." + evil, "tensors": P2 + b"K\x00.", "pickle": GOOD}
    ),
    "torch 0.1: a tensor": lambda evil: tar_of(
        {
            "storages": P2 + b"K\x00." + P2 + b"].",
            "tensors": P2
            + b"K\x02."
            + P2
            + b"(K\x05K\x01Nt."
            + struct.pack("<iiqqq", 1, 0, 1, 1, 0)
            + evil
            + bytes(16),
            "pickle": GOOD,
        }
    ),
}


@pytest.mark.parametrize("case", NESTED)
def test_inside_another_file(case: str, tmp_path: Path, canary: Path) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(NESTED[case](payload(canary)))
    with pytest.raises(ModelError, match=r"'io\.open' \(byte 2\) is not on the list"):
        pickles.scan(path)


# Where the payload stands for a part that has to be there, there is no file without it.
_NEEDED = ("the second pickle of five", "torch 0.1: a storage", "torch 0.1: after a storage")


@pytest.mark.parametrize("case", [case for case in NESTED if case not in _NEEDED])
def test_the_same_files_are_taken_without_the_payload(case: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(NESTED[case](P2 + (b"K\x00." if case.startswith("torch 0.1") else b"}.")))
    assert "looked through" in pickles.scan(path)[0]


def test_every_name_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    evil = P2 + b"(" + OPEN + b"cos\nsystem\n" + OPEN + b"t."
    path.write_bytes(zip_of({"a/data.pkl": evil, "a/b.pkl": P2 + b"csys\nexit\n."}))
    with pytest.raises(ModelError) as caught:
        pickles.scan(path)
    assert caught.value.message == (
        "3 problems:\n"
        "  - w.pt/a/data.pkl: 'io.open' (byte 3) is not on the list of what weights may hold.\n"
        "  - w.pt/a/data.pkl: 'os.system' (byte 12) is not on the list of what weights may hold.\n"
        "  - w.pt/a/b.pkl: 'sys.exit' (byte 2) is not on the list of what weights may hold."
    )
    assert "torch.save(model.state_dict()" in caught.value.hint


def test_a_name_cannot_paint_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "w.pkl").write_bytes(P4 + short("\x1b[2J") + short("x") + b"\x93.")
    with pytest.raises(ModelError) as caught:
        pickles.scan(tmp_path / "w.pkl")
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("descr", ["'|O'", "[('a', '<f4'), ('b', 'O')]", '"O8"'])
def test_an_array_of_objects(descr: str, tmp_path: Path, canary: Path) -> None:
    (tmp_path / "x.npy").write_bytes(npy(descr, payload(canary)))
    (tmp_path / "x.npz").write_bytes(zip_of({"arr_0.npy": npy(descr, payload(canary))}))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(ModelError, match="numpy array of objects"):
            pickles.scan(tmp_path / name)
    (tmp_path / "x.npy").write_bytes(npy("'<f4'", b"\x80\x02cO"))
    assert pickles.scan(tmp_path / "x.npy") == ("x.npy holds no pickle.",)


def test_numbers_that_look_like_a_pickle_are_numbers(tmp_path: Path) -> None:
    """One tensor in sixteen thousand begins with these two bytes."""
    path = torch_files.save_zip(tmp_path / "w.pt", GOOD, {"0": P2 + bytes(range(256))})
    assert "1 pickle of w.pt" in pickles.scan(path)[0]


def test_archives_nested_too_deep(tmp_path: Path) -> None:
    data = zip_of({"a.pkl": GOOD})
    for _ in range(3):
        data = zip_of({"a": data})
    (tmp_path / "w.zip").write_bytes(data)
    assert "in 4 archives" in pickles.scan(tmp_path / "w.zip")[0]
    (tmp_path / "w.zip").write_bytes(zip_of({"a": data}))
    with pytest.raises(ModelError, match="nested more than 4 deep"):
        pickles.scan(tmp_path / "w.zip")


def test_two_members_of_one_name_and_bytes_before_the_first(tmp_path: Path, canary: Path) -> None:
    path = tmp_path / "w.pt"
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", payload(canary))
        archive.writestr("a/data.pkl", GOOD)
    refused(path, "two members named")
    path.write_bytes(zip_of({"a/DATA.pkl": payload(canary), "a/data.pkl": GOOD}))
    refused(path, "two members named")
    path.write_bytes(b"PK\x03\x04" + bytes(60) + zip_of({"a/data.pkl": GOOD}))
    refused(path, "bytes before its first member")


def test_a_member_named_like_a_folder_and_one_without_a_name(tmp_path: Path, canary: Path) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(zip_of({"a/data.pkl": GOOD, "a/x/": payload(canary)}))
    with pytest.raises(ModelError, match=r"w\.pt/a/x/: 'io\.open'"):
        pickles.scan(path)
    path.write_bytes(zip_of({"a/data.pkl": GOOD, "nameless": payload(canary)}).replace(b"nameless", bytes(8)))
    refused(path, "a member without a name")


def test_work_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.pkl"
    laughs = P2 + b"N" + b"2\x86q\x00" * 200 + b"}h\x00Ns."
    path.write_bytes(laughs)
    refused(path, "no plain value")
    path.write_bytes(P2 + b"(" * 100_000 + b"t" * 100_000 + b".")
    assert pickles.scan(path)[0].startswith("1 pickle")
    path.write_bytes(P2 + b"N" + b"\x85" * 300_000 + b".")
    assert pickles.scan(path)[0].startswith("1 pickle")
    monkeypatch.setattr(pickle_stack, "MAX_STEPS", 10_000)
    path.write_bytes(P2 + b"N" * 20_000 + b".")
    refused(path, "more than 10000 steps")
    copies = b"ccollections\nOrderedDict\n](" + (b"K\x01N\x86" * 1000) + b"eq\x00\x85R"
    again = b"ccollections\nOrderedDict\nh\x00\x85R" * 20
    path.write_bytes(P2 + copies + again + b".")
    refused(path, "more than 10000 steps")
    monkeypatch.setattr(pickle_stack, "MAX_STEPS", 10_000_000)
    monkeypatch.setattr(pickle_stack, "MAX_SECONDS", -1.0)
    path.write_bytes(P2 + b"N" * 20_000 + b".")
    refused(path, "takes longer than")


def test_a_pickle_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_in_file, "MAX_BYTES", 3 << 20)
    path = tmp_path / "w.pkl"
    path.write_bytes(P2 + b"B" + struct.pack("<I", 4 << 20) + bytes(4 << 20) + b".")
    with pytest.raises(ModelError, match="larger than 3145728 bytes"):
        pickles.scan(path)
