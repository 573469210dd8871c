"""Seeds of the targets that read PyTorch's files: pickles and archives as torch.distributed.checkpoint and torch.save
write them, made without PyTorch. The classes below only have the names that go into a pickle."""

import collections
import io
import pickle
import struct
import sys
import types
import zipfile

DCP = "torch.distributed.checkpoint"


def module_of(name):
    """The module of that name; an empty one is made where there is none."""
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(module_of(parent), child, sys.modules[name])
    return sys.modules[name]


def named(module, name, base=object, **members):
    """A class that pickles as `module.name`."""
    cls = type(name, (base,), dict(members, __module__=module, __qualname__=name))
    setattr(module_of(module), name, cls)
    return cls


def constant(module, name):
    """An object that pickles as the name itself, as torch.float32 does."""
    value = type(name, (), {"__reduce__": lambda self: name, "__module__": module})()
    setattr(module_of(module), name, value)
    return value


def function(module, name):
    made = types.FunctionType((lambda *_: None).__code__, {}, name)
    made.__module__, made.__qualname__ = module, name
    setattr(module_of(module), name, made)
    return made


class Call:
    """Pickles as a call of `callee`."""

    def __init__(self, callee, *arguments):
        self.reduced = (callee, arguments)

    def __reduce__(self):
        return self.reduced


def instance(cls, state):
    made = cls.__new__(cls)
    made.__dict__.update(state)
    return made


Metadata = named(f"{DCP}.metadata", "Metadata")
StorageMeta = named(f"{DCP}.metadata", "StorageMeta")
MetadataIndex = named(f"{DCP}.metadata", "MetadataIndex", __hash__=lambda self: hash(self.fqn))
TensorStorageMetadata = named(f"{DCP}.metadata", "TensorStorageMetadata")
BytesStorageMetadata = named(f"{DCP}.metadata", "BytesStorageMetadata")
ChunkStorageMetadata = named(f"{DCP}.metadata", "ChunkStorageMetadata")
TensorProperties = named(f"{DCP}.metadata", "TensorProperties", __getstate__=lambda self: self.state)
MemoryFormat = named(f"{DCP}.metadata", "_MEM_FORMAT_ENCODING")
StorageInfo = named(f"{DCP}.filesystem", "_StorageInfo")
Size = named("torch", "Size", tuple, __reduce__=lambda self: (Size, (tuple(self),)))
get_layout = function("torch.serialization", "_get_layout")
rebuild_tensor = function("torch._utils", "_rebuild_tensor_v2")
system = function("os", "fsdp_fuzz_system")
FLOAT32 = constant("torch", "float32")
BFLOAT16 = constant("torch", "bfloat16")
FloatStorage = named("torch", "FloatStorage")
BFloat16Storage = named("torch", "BFloat16Storage")


def properties(dtype):
    made = TensorProperties()
    made.state = (dtype, Call(get_layout, "torch.strided"), False, Call(MemoryFormat, 0), False)
    return made


def chunk(offsets, sizes):
    return instance(ChunkStorageMetadata, {"offsets": Size(offsets), "sizes": Size(sizes)})


def tensor(dtype, size, chunks):
    return instance(TensorStorageMetadata, {"properties": properties(dtype), "size": Size(size), "chunks": chunks})


def metadata(tensors, places, **changes):
    """`places`: list of (name, offsets, index, file, offset, length)."""
    storage = {instance(MetadataIndex, {"fqn": name, "offset": None if offsets is None else Size(offsets), "index": index}):
               instance(StorageInfo, {"relative_path": file, "offset": offset, "length": length})
               for name, offsets, index, file, offset, length in places}
    meta = instance(StorageMeta, {"checkpoint_id": "/tmp/dcp", "save_id": "0b0b", "load_id": None, "modules": []})
    state = {"state_dict_metadata": tensors, "planner_data": {name: (name,) for name in tensors},
             "storage_data": storage, "storage_meta": meta, "version": "1.0.0"}
    return instance(Metadata, dict(state, **changes))


def dump(value, protocol=4):
    return pickle.dumps(value, protocol)


def metadata_seeds():
    halves = [chunk([0, 0], [2, 3]), chunk([2, 0], [2, 3])]
    tensors = {"model.w": tensor(FLOAT32, [4, 3], halves), "model.b": tensor(BFLOAT16, [3], [chunk([0], [3])]),
               "step": instance(BytesStorageMetadata, {})}
    places = [("model.w", [0, 0], 0, "__0_0.distcp", 0, 900), ("model.w", [2, 0], 1, "__1_0.distcp", 0, 900),
              ("model.b", [0], 0, "__0_0.distcp", 900, 880), ("step", None, None, "__0_0.distcp", 1780, 500)]

    def other(name, size, chunks, **changes):
        return dump(metadata(dict(tensors, **{name: tensor(FLOAT32, size, chunks)}), places, **changes))

    def file_name(name):
        return dump(metadata(tensors, places[:2] + [("model.b", [0], 0, name, 900, 880)]))

    cycle = []
    cycle.append(cycle)
    shared = []
    for _ in range(40):
        shared = [shared, shared]
    good = metadata(tensors, places)
    return {
        "valid-protocol-2": dump(good, 2),
        "valid-protocol-4": dump(good),
        "valid-protocol-5": dump(good, 5),
        "valid-empty": dump(metadata({}, [])),
        "valid-scalar": dump(metadata({"s": tensor(FLOAT32, [], [chunk([], [])])}, [("s", [], 0, "__0_0.distcp", 0, 500)])),
        "refused-call": dump(metadata(tensors, places, planner_data=Call(system, "true"))),
        "refused-protocol-0": dump([1], 0),
        "refused-cut-off": dump(good)[:-100],
        "refused-list": dump([1, 2.5, None, True, -5, 2**40, b"bytes", "text"]),
        "refused-long-number": dump(metadata(tensors, [("model.b", [0], 0, "__0_0.distcp", 2**70, 880)])),
        "refused-hole": other("model.w", [5, 3], halves),
        "refused-overlap": other("model.w", [4, 3], halves + halves[:1]),
        "refused-same-archive": dump(metadata(tensors, places[:2] + [("model.b", [0], 0, "__0_0.distcp", 899, 880)])),
        "refused-outside": other("model.w", [4, 3], [chunk([2, 0], [2**62, 3])]),
        "refused-negative": other("model.w", [4, 3], [chunk([-1, 0], [5, 3])]),
        "refused-rank": other("model.w", [1] * 9, [chunk([0] * 9, [1] * 9)]),
        "refused-place": dump(metadata(tensors, places[:1])),
        "refused-parent-folder": file_name("../__0_0.distcp"),
        "refused-escape": file_name("a\u001b[31m\nb"),
        "valid-cycle": dump(metadata(tensors, places, planner_data=cycle)),
        "refused-shared": dump(metadata({"model.w": shared}, places, planner_data=shared)),
        "refused-deep": b"\x80\x04" + b"(" * 300 + b"t" * 300 + b".",
        "refused-memo": b"\x80\x04]r\xff\xff\xff\x7f.",
    }


class TensorPickler(pickle.Pickler):
    """As torch.save: a storage goes beside the pickle."""

    def persistent_id(self, obj):
        return obj.id if isinstance(obj, Storage) else None


Storage = collections.namedtuple("Storage", "id")


def tensor_pickle(shape, strides=None, numel=None, offset=0, storage=FloatStorage, key="0"):
    strides = strides if strides is not None else [numel_of(shape[i + 1:]) for i in range(len(shape))]
    numel = numel if numel is not None else numel_of(shape)
    stored = Storage(("storage", storage, key, "cpu", numel))
    stream = io.BytesIO()
    TensorPickler(stream, 2).dump(
        Call(rebuild_tensor, stored, offset, tuple(shape), tuple(strides), False, collections.OrderedDict()))
    return stream.getvalue()


def numel_of(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def archive(pickled, data, byteorder="little", **more):
    members = {"archive/data.pkl": pickled, "archive/byteorder": byteorder, "archive/data/0": data,
               "archive/version": "3\n", **more}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as out:
        for name, content in members.items():
            out.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def as_zip64(content):
    """The same archive with its directory described by a zip64 record."""
    body, end = content[:-22], content[-22:]
    count, size, start = struct.unpack("<HII", end[10:20])
    record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<IIQI", 0x07064B50, 0, len(body), 1)
    return body + record + locator + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


def tensor_seeds():
    six = bytes(range(24))
    good = archive(tensor_pickle([2, 3]), six)
    return {
        "valid-two-by-three": good,
        "valid-zip64": as_zip64(good),
        "valid-part-of-storage": archive(tensor_pickle([2], numel=6, offset=3), six),
        "valid-scalar": archive(tensor_pickle([]), six[:4]),
        "valid-empty": archive(tensor_pickle([0, 3]), b""),
        "valid-bfloat16": archive(tensor_pickle([3], storage=BFloat16Storage), six[:6]),
        "valid-folder": good.replace(b"archive/", b"archivE/"),
        "refused-big-endian": archive(tensor_pickle([2, 3]), six, byteorder="big"),
        "refused-strides": archive(tensor_pickle([2, 3], [1, 2]), six),
        "refused-overflow": archive(tensor_pickle([2**32, 2**32], numel=6), six),
        "refused-offset": archive(tensor_pickle([2, 3], offset=2**62), six),
        "refused-negative": archive(tensor_pickle([-2, 3], [3, 1], numel=6), six),
        "refused-rank": archive(tensor_pickle([1] * 9), six[:4]),
        "refused-short-data": archive(tensor_pickle([2, 3]), six[:-1]),
        "refused-no-storage": archive(tensor_pickle([2, 3], key="a\u001b[31m\nb"), six),
        "valid-wrong-crc": good.replace(six[:16], six[:15] + b"x"),
        "refused-no-pickle": archive(tensor_pickle([2, 3]), six).replace(b"data.pkl", b"data.pkx"),
        "refused-call": archive(dump(Call(system, "true"), 2), six),
        "refused-cut-off": good[:-1],
        "refused-comment": good[:-2] + b"\1\0x",
        "refused-directory": good[:-6] + struct.pack("<I", 2**31) + good[-2:],
    }
