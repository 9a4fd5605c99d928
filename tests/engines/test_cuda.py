"""The engine for GPUs, with a driver that writes down what it is asked."""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rawkern.arguments.signature import make_signature
from rawkern.arguments.slow_path import Bound
from rawkern.base import table
from rawkern.base import torch_private as private
from rawkern.base.attributes import PLAIN, Attributes
from rawkern.base.forking import Lock
from rawkern.base.records import CPU, CUDA, TARGET
from rawkern.compile.programs import Entry
from rawkern.engines import cuda, cuda_target, cuda_variables
from rawkern.errors import LaunchError, MissingDependencyError, UnsupportedError
from rawkern.launch import launcher, modes

CONTEXT = 0x1000


POINTERS = ("const float*", "float*", "int", "double")


class DriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(MESSAGES[status])


MESSAGES = {
    201: "CUDA_ERROR_INVALID_CONTEXT: invalid device context",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal one",
}


class Driver:
    """Records launches as the real driver would see them, and fails on demand."""

    CUDADriverError = DriverError

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.context = CONTEXT
        self.failures: list[int] = []
        self.attributes = {0: 1024, 1: 1024, 4: 32}
        self.set: list[tuple[int, int, int]] = []
        self.layout: tuple[str, tuple[int, ...]] = ("", ())
        self.before_launch: Callable[[], None] = lambda: None
        self.launch_native = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self.launch)
        self.current_native = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.current)

    def ctxGetCurrent(self) -> int:
        return self.context

    def ctxSetCurrent(self, context: int) -> None:
        self.context = context

    def moduleLoadData(self, code: bytes) -> int:
        return 77

    def moduleGetFunction(self, module: int, symbol: str) -> int:
        return 99

    def funcGetAttribute(self, number: int, function: int) -> int:
        return self.attributes.get(number, 0)

    def funcSetAttribute(self, function: int, number: int, value: int) -> None:
        self.set.append((function, number, value))

    def occupancyMaxActiveBlocksPerMultiprocessor(self, function: int, threads: int, shared_mem: int) -> int:
        return 2

    def current(self, context: int) -> int:
        """cuCtxGetCurrent."""
        ctypes.c_uint64.from_address(context).value = self.context
        return 0

    def launch(self, config: int, function: int, pointers: int, extra: int | None) -> int:
        """cuLaunchKernelEx."""
        self.before_launch()
        if self.failures:
            return self.failures.pop()
        formats, offsets = self.layout
        where = (ctypes.c_uint64 * max(len(offsets), 1)).from_address(pointers) if offsets else ()
        values = tuple(
            struct.unpack(code, ctypes.string_at(where[i], struct.calcsize(code)))[0] for i, code in enumerate(formats)
        )
        gx, gy, gz, bx, by, bz, shared_mem, stream, attributes, count = struct.unpack(
            "=7I4xQQI4x", ctypes.string_at(config, 56)
        )
        found = {
            "grid": (gx, gy, gz),
            "block": (bx, by, bz),
            "shared_mem": shared_mem,
            "stream": stream,
            "values": values,
            "context": self.context,
            "function": function,
        }
        if count:
            found["attributes"] = [
                struct.unpack("=i4x3i", ctypes.string_at(attributes + 72 * k, 20)) for k in range(count)
            ]
        self.launches.append(found)
        return 0


def work_stream(kind: int, index: int, stream: int) -> int:
    assert kind == CUDA
    ctypes.c_uint64.from_address(stream).value = 500 + index
    return 0


WORK_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(work_stream)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver()
    fake = types.SimpleNamespace(driver=driver)
    monkeypatch.setattr(cuda, "_cuda", lambda: fake)
    monkeypatch.setattr(
        cuda_target,
        "_entries",
        lambda: (table.address_of(driver.launch_native), table.address_of(driver.current_native)),
    )
    monkeypatch.setattr(cuda, "_primary_context", lambda cuda, index: CONTEXT)
    monkeypatch.setattr(private, "raw_stream", lambda index: 500 + index)
    monkeypatch.setattr(private, "stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(table, "learn_cuda", lambda: None)
    properties = types.SimpleNamespace(shared_memory_per_block_optin=232448, multi_processor_count=3, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    table.table()
    before = table.field("work_stream")
    table.field("work_stream", table.address_of(WORK_STREAM))
    yield driver
    table.field("work_stream", before)
    cuda_target._forked.value = 0


def bound(*values: Any) -> Bound:
    """What a launch is given."""
    return Bound(None, values, (), (), ())


def make(driver: Driver, types_: tuple[str, ...] = POINTERS, index: int = 0):
    entry = Entry("k", "k", types_)
    signature = make_signature(entry, [f"p{i}" for i in range(len(types_))])
    driver.layout = (
        "".join({"const float*": "Q", "float*": "Q", "int": "i", "float": "f", "double": "d"}[t] for t in types_),
        signature.offsets,
    )
    program = types.SimpleNamespace(entries=(entry,), code=b"cubin", arch="sm_90")
    return cuda.Module(program, index).kernel("k", signature)  # type: ignore[arg-type]


def test_code_is_loaded_as_it_was_made_where_the_driver_takes_no_other_line_table(driver, monkeypatch) -> None:
    loaded = []

    def load(code: bytes) -> int:
        loaded.append(code)
        if code == b"named":
            raise DriverError(201)
        return 77

    driver.moduleLoadData = load
    monkeypatch.setattr(cuda.linetable, "findable", lambda program: b"named")
    make(driver)
    assert loaded == [b"named", b"cubin"]


def test_every_parameter_arrives_at_its_place(driver: Driver) -> None:
    kernel = make(driver)
    kernel.target((32, 4, 1), 64).run((3, 2, 1), 1234, bound(2**63 + 8, 16, -5, 0.1))
    assert driver.launches == [
        {
            "grid": (3, 2, 1),
            "block": (32, 4, 1),
            "shared_mem": 64,
            "stream": 1234,
            "values": (2**63 + 8, 16, -5, 0.1),
            "context": CONTEXT,
            "function": 99,
        }
    ]


def test_variables_are_one_for_all_programs_of_a_module(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first program's memory is the variable; a launch of another's kernel is between copies, on its stream."""
    ptx = """
.visible .const .align 4 .b8 taps[12];
.global .align 4 .u32 calls = 3;
.global .align 4 .f32 start = 0f40200000;
.global .align 8 .u64 place = generic(start);
.global .align 8 .u64 table[2] = {f, g};
.global .align 1 .b8 $str[4] = {97, 98, 99};
"""
    sizes = {"taps": 12, "calls": 4, "start": 4, "place": 8, "table": 16, "$str": 4}
    events: list[Any] = []
    monkeypatch.setattr(
        cuda.Module, "own_view", lambda self, name: (self.at + 100 * list(sizes).index(name), sizes[name])
    )
    monkeypatch.setattr(cuda_variables, "_memcpy", lambda: lambda *copy: events.append(copy) or 0)
    driver.before_launch = lambda: events.append("launch")
    signature = make_signature(Entry("k", "k", ()), [])
    driver.layout = "", ()
    variables, modules = cuda.shared_variables(), []
    for at in (1000, 2000):
        monkeypatch.setattr(cuda.Module, "at", at, raising=False)
        program = types.SimpleNamespace(entries=(), code=ptx.encode(), ptx=ptx, arch="compute_90")
        modules.append(cuda.Module(program, 0, variables))
    targets = [module.kernel("k", signature).target((32, 1, 1), 0) for module in modules]
    assert targets[0].address and not targets[1].address  # native code does not copy
    for target in targets:
        target.run((1, 1, 1), 7, bound())
    into = [(2000, 1000, 12, 7), (2100, 1100, 4, 7), (2200, 1200, 4, 7)]
    back = [(1100, 2100, 4, 7), (1200, 2200, 4, 7)]
    assert events == ["launch", *into, "launch", *back]
    assert modules[1].global_view("calls") == (1100, 4) and modules[1].global_view("place") == (2300, 8)


def test_no_parameters(driver: Driver) -> None:
    make(driver, ()).target((1, 1, 1), 0).run((1, 1, 1), 0, bound())
    assert len(driver.launches) == 1


def test_torchs_current_stream_is_asked_for_at_each_launch(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = functools.partial(make(driver, ("int",)).target((32, 1, 1), 0).run, (1, 1, 1))
    run(None, bound(1))
    run(0, bound(2))
    assert [launch["stream"] for launch in driver.launches] == [500, 0]


def test_a_launch_inside_a_launch_keeps_its_parameters(driver: Driver) -> None:
    """As a signal handler or a destructor makes one."""
    kernel, seen = make(driver, ("int",)), []
    run = functools.partial(kernel.target((32, 1, 1), 0).run, (1, 1, 1))

    def interrupted() -> None:
        if not seen:
            seen.append(1)
            run(None, bound(22))

    driver.before_launch = interrupted
    run(None, bound(11))
    assert [launch["values"] for launch in driver.launches] == [(22,), (11,)]


def test_threads_keep_their_parameters_apart(driver: Driver) -> None:
    run = functools.partial(make(driver, ("int", "double")).target((32, 1, 1), 0).run, (1, 1, 1))

    def many(number: int) -> None:
        for i in range(500):
            run(None, bound(number * 1000 + i, float(number * 1000 + i)))

    threads = [threading.Thread(target=many, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launches) == 2000
    assert all(launch["values"][0] == launch["values"][1] for launch in driver.launches)
    assert len({launch["values"][0] for launch in driver.launches}) == 2000


def test_a_thread_without_a_context_gets_the_primary_one(driver: Driver) -> None:
    run = functools.partial(make(driver, ("int",)).target((32, 1, 1), 0).run, (1, 1, 1))
    driver.context = 0
    run(None, bound(7))
    assert [launch["values"] for launch in driver.launches] == [(7,)]
    assert driver.context == CONTEXT


def test_another_current_device_is_left_as_it_was(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = functools.partial(make(driver, ("int",), index=1).target((32, 1, 1), 0).run, (1, 1, 1))
    driver.context = 0x2000
    run(None, bound(7))
    assert driver.launches[0]["context"] == CONTEXT
    assert driver.launches[0]["stream"] == 501
    assert driver.context == 0x2000


def test_driver_errors_say_what_to_do(driver: Driver) -> None:
    kernel = make(driver, ("int",))
    driver.failures = [700]
    with pytest.raises(LaunchError, match=r"k: the launch failed on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS.*an earlier"):
        kernel.target((32, 1, 1), 0).run((1, 1, 1), 0, bound(1))


def test_shared_memory_beyond_48_kib_raises_the_limit_once(driver: Driver) -> None:
    kernel = make(driver, ("int",))
    kernel.target((32, 1, 1), 47 * 1024)  # 1 KiB is the kernel's own
    assert driver.set == []
    kernel.target((32, 1, 1), 100 * 1024)
    kernel.target((32, 1, 1), 64 * 1024)
    assert driver.set == [(99, 8, 100 * 1024)]
    assert kernel.max_shared_mem == 232448


def test_attributes_that_are_set(driver: Driver) -> None:
    kernel = make(driver, ("int",))
    kernel.set_attribute("max_dynamic_shared_size_bytes", 60_000)
    kernel.set_attribute("preferred_shared_memory_carveout", 50)
    kernel.set_attribute("max_dynamic_shared_size_bytes", 1000)  # launches that were prepared need what they have
    kernel.target((32, 1, 1), 59_000)
    assert driver.set == [(99, 8, 60_000), (99, 9, 50)]
    assert kernel.attributes["max_dynamic_shared_size_bytes"] == 1000
    assert kernel.attributes["preferred_shared_memory_carveout"] == 50
    kernel.target((32, 1, 1), 70_000)
    assert driver.set[2:] == [(99, 8, 70_000)]


class Native:
    """Launches of native code. CPU tensors, at CPU addresses, replace those of a GPU."""

    def __init__(self, driver: Driver, *types_: str, attributes: Attributes = PLAIN) -> None:
        engine_kernel = make(driver, types_)
        signature = make_signature(Entry("k", "k", types_), [])
        self.name, self.unit = "k", types.SimpleNamespace(lock=Lock())
        self.build = types.SimpleNamespace(until=ctypes.c_int64((1 << 63) - 1))
        self.signature, self.strided, self.others = signature, False, 0
        self.target = engine_kernel.target((32, 4, 1), 64, attributes)
        ctypes.c_int64.from_address(self.target.address + TARGET.offset("device")).value = CPU
        plan = launcher.Plan(self, (32, 4, 1), 64, attributes)  # type: ignore[arg-type]
        plan.built = self, {modes.place(torch.device("cpu")): self.target}  # type: ignore[assignment]
        plan.record.set(until=ctypes.addressof(self.build.until))
        plan._ready(self, self.target)  # type: ignore[arg-type]
        self.go = plan.grid((3, 2), (32, 4))

    def current(self, args: Any, kwargs: Any) -> Any:
        self.others += 1
        return self


def test_checks_and_launch_in_native_code(driver: Driver) -> None:
    native = Native(driver, *POINTERS)
    x, y = torch.ones(4), torch.ones(4)
    for count in range(1, 5):
        native.go(x, y, -count, 0.1)
        assert y._version == count
    assert [launch.pop("values")[2] for launch in driver.launches] == [-1, -2, -3, -4]
    native.go(y, x, 7, 2)
    assert driver.launches.pop() == {
        "grid": (3, 2, 1),
        "block": (32, 4, 1),
        "shared_mem": 64,
        "stream": 500,
        "values": (y.data_ptr(), x.data_ptr(), 7, 2.0),
        "context": CONTEXT,
        "function": 99,
    }
    assert not native.others


def test_a_native_launch_inside_another_and_in_threads(driver: Driver) -> None:
    seen = []

    def interrupted() -> None:
        if not seen:
            seen.append(1)
            native.go(y, y, 22, 22.0)

    driver.before_launch = interrupted
    native, y = Native(driver, *POINTERS), torch.ones(4)
    native.go(y, y, 11, 11.0)
    assert [launch["values"][2:] for launch in driver.launches] == [(22, 22.0), (11, 11.0)]
    driver.launches.clear()
    threads = [
        threading.Thread(target=lambda k=k: [native.go(y, y, k * 1000 + i, float(k * 1000 + i)) for i in range(500)])
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = [launch["values"] for launch in driver.launches]
    assert len(values) == 2000 == len({value[2] for value in values}) and all(value[2] == value[3] for value in values)
    assert not native.others


def test_native_launches_that_take_the_slow_path(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    native, y = Native(driver, "float*"), torch.ones(4)
    for context in (0, 0x2000):  # a thread without a context, or with another device's
        driver.context = context
        native.go(y)
        assert driver.launches.pop()["context"] == CONTEXT and driver.context == (context or CONTEXT)
    assert native.others == 2 and y._version == 2
    driver.context, driver.failures = CONTEXT, [700, 700]
    with pytest.raises(LaunchError, match=r"k: the launch failed on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS.*an earlier"):
        native.go(y)
    native.go(y)
    assert native.others == 3 and len(driver.launches) == 1
    cuda_target._after_fork()
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        native.go(y)
    assert len(driver.launches) == 1


def test_native_cooperative_launches(driver: Driver) -> None:
    native, y = Native(driver, "float*", attributes=Attributes(cooperative=True)), torch.ones(4)
    native.go(y)
    assert driver.launches[0]["attributes"] == [(2, 1, 0, 0)] and not native.others
    with pytest.raises(LaunchError, match=r"all 7 blocks at once, cuda:0 holds 6 of this kernel"):
        native.go.plan.grid(7, (32, 4))(y)


def test_cooperative_launches_have_a_limit(driver: Driver) -> None:
    target = make(driver, ("int",)).target((32, 1, 1), 0, Attributes(cooperative=True))
    target.run((6, 1, 1), 0, bound(4))
    assert driver.launches[0]["attributes"] == [(2, 1, 0, 0)]
    assert driver.launches[0]["values"] == (4,)
    with pytest.raises(LaunchError, match=r"all 7 blocks at once, cuda:0 holds 6 of this kernel") as caught:
        target.run((7, 1, 1), 0, bound(4))
    assert caught.value.most_blocks == 6


def test_clusters_and_dependent_launches(driver: Driver) -> None:
    asked = Attributes((2, 3, 1), programmatic=True)
    native, y = Native(driver, "float*", attributes=asked), torch.ones(4)
    native.go.plan.grid((4, 3), (32, 4))(y)
    cover = launcher.Plan(native, (32, 4, 1), 64, asked)  # type: ignore[arg-type]
    cover.built = native, {modes.place(torch.device("cpu")): native.target}  # type: ignore[assignment]
    cover.record.set(until=ctypes.addressof(native.build.until))
    cover._ready(native, native.target)  # type: ignore[arg-type]
    for n in (1, 64, 65, 129):  # whole clusters of two blocks of 32
        cover.cover(n)(y)
    assert [launch["grid"] for launch in driver.launches] == [(4, 3, 1), *[(k, 1, 1) for k in (2, 2, 4, 6)]]
    assert driver.launches[0]["attributes"] == [(4, 2, 3, 1), (6, 1, 0, 0)] and not native.others
    assert not driver.set  # six blocks are portable
    kernel = make(driver, ("int",))
    kernel.target((32, 1, 1), 0, Attributes((16, 1, 1)))
    assert driver.set == [(99, 14, 1)]
    # What the source has is in the code, and is not an attribute of a launch.
    driver.attributes |= {10: 1, 11: 2, 12: 1, 13: 1}
    kernel = make(driver, ("int",))
    kernel.target((32, 1, 1), 0, Attributes((2, 1, 1))).run((2, 1, 1), 0, bound(4))
    assert kernel.cluster == (2, 1, 1) and "attributes" not in driver.launches[-1]
    driver.attributes |= {11: 0, 12: 0, 13: 0}
    assert make(driver, ("int",)).cluster == (0, 0, 0)


def test_what_fits_into_a_cluster_is_asked_of_the_driver(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = {"cuOccupancyMaxActiveClusters": 5, "cuOccupancyMaxPotentialClusterSize": 8}, []

    def answer(question: str, found: Any, function: Any, config: bytes) -> int:
        *sizes, _, attributes, count = struct.unpack("=7I4xQQI4x", config)
        cluster = struct.unpack("=i4x3I", ctypes.string_at(attributes, 20)) if count else None
        asked.append((question, function.value, sizes, cluster))
        found._obj.value = answers[question]
        return 0

    monkeypatch.setattr(cuda_target, "libcuda", lambda: {q: functools.partial(answer, q) for q in answers})
    kernel = make(driver, ("int",))
    assert kernel.most_of_cluster((64, 1, 1), 128, (4, 2, 1)) == 8
    assert asked == [("cuOccupancyMaxActiveClusters", 99, [4, 2, 1, 64, 1, 1, 128], (4, 4, 2, 1))]
    target = kernel.target((64, 1, 1), 0, Attributes((4, 2, 1), cooperative=True))
    target.run((8, 5, 1), 0, bound(4))
    with pytest.raises(LaunchError, match="all 48 blocks at once, cuda:0 holds 40 of this kernel"):
        target.run((8, 6, 1), 0, bound(4))
    answers["cuOccupancyMaxActiveClusters"] = 0
    assert kernel.most_of_cluster((64, 1, 1), 0, (16, 1, 1)) == 8
    answers["cuOccupancyMaxPotentialClusterSize"] = 16  # in another shape
    assert kernel.most_of_cluster((64, 1, 1), 0, (1, 16, 1)) == 15


def test_loading_during_a_capture_says_warm_up(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "stream_capturing", lambda: True)
    with pytest.raises(LaunchError, match=r"k has to be compiled and loaded first.*warm up first"):
        make(driver)


def test_after_a_fork_there_is_no_cuda(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = make(driver, ("int",))
    run = functools.partial(kernel.target((32, 1, 1), 0).run, (1, 1, 1))
    run(None, bound(1))
    cuda_target._after_fork()
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        run(None, bound(2))
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        make(driver)
    assert len(driver.launches) == 1


def test_attributes_have_cupys_names(driver: Driver) -> None:
    attributes = make(driver).attributes
    assert attributes["max_threads_per_block"] == 1024
    assert attributes["shared_size_bytes"] == 1024
    assert attributes["num_regs"] == 32
    assert set(attributes) >= {"local_size_bytes", "const_size_bytes", "ptx_version", "binary_version"}


@pytest.mark.parametrize(
    ("capability", "expected"),
    [(90, "sm_90a"), (86, "sm_86"), (89, "sm_86"), (103, "sm_100"), (110, "compute_103"), (130, "compute_103")],
)
def test_nearest_architecture(capability: int, expected: str) -> None:
    known = (75, 80, 86, 90, 100) if capability == 103 else (75, 80, 86, 90, 100, 103)
    assert cuda._nearest(capability, known) == expected


def test_a_gpu_older_than_the_compiler_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"capability is 7\.0, .* starts at 7\.5; .*: pip install .*\[cuda12\]"):
        cuda._nearest(70, (75, 80))


def test_without_cupy_the_message_gives_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingDependencyError, match=r"needs CuPy .*run: pip install .*\[(cpu|cuda1[23])\]"):
        cuda._cuda.__wrapped__()


def test_where_cupy_finds_no_gpu_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy")

    def none() -> int:
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", none)
    expected = r"on a GPU, but CuPy [\d.]+ finds none \(cudaErrorInsufficientDriver\).*run: pip install "
    with pytest.raises(MissingDependencyError, match=expected):
        cuda._cuda.__wrapped__()
