"""What a kernel's main loop could reach at best on a device, from its instructions and the device's data sheet.

Predictions, not measurements: each resource of the chip is taken to be busy without a gap, and the slowest one sets the
time of an element.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Device:
    """Data sheets of the SXM versions; the clock is the one that their peak of float32 operations implies."""
    name: str
    arch: int
    multiprocessors: int
    gigahertz: float
    terabytes_per_second: float


DEVICES = (Device("A100 80 GB", 80, 108, 1.41, 2.039), Device("H100", 90, 132, 1.98, 3.35),
           Device("H200", 90, 132, 1.98, 4.8), Device("B200", 100, 148, 1.98, 8.0))

# Threads' instructions per clock and multiprocessor. Issue: four schedulers, a warp each. The others: CUDA C++
# Programming Guide, "Throughput of Native Arithmetic Instructions", in results per clock; of packed pairs half of that.
ISSUE = 128
RATES = {
    "float32": {80: 64, 90: 128, 100: 128},
    "multiply": {80: 64, 90: 64, 100: 64},
    "half": {80: 128, 90: 128, 100: 128},
    "logic": {80: 64, 90: 64, 100: 64},
    "float64": {80: 32, 90: 64, 100: 64},
    "convert": {80: 16, 90: 16, 100: 16},
}
UNITS = {
    "float32": {"FADD", "FFMA", "FMUL", "FADD2", "FFMA2"},
    "multiply": {"IMAD", "IMAD.WIDE", "IMAD.HI"},
    "half": {"HADD2", "HFMA2", "HMUL2"},
    "logic": {"LOP3", "PRMT", "SEL", "FSEL", "ISETP", "FSETP", "FMNMX", "FMNMX3", "HMNMX2", "VHMNMX", "IMNMX", "VIMNMX",
              "VIMNMX3", "VIADDMNMX", "SHF", "IADD3", "IADD", "VIADD", "LEA", "PLOP3", "MOV", "R2P", "P2R"},
    "float64": {"DADD", "DFMA", "DMUL", "DSETP"},
    "convert": {"F2F", "F2I", "I2F", "F2FP", "POPC", "MUFU"},
}
PACKED = {"FADD2": 2, "FFMA2": 2}  # one issue slot, but the unit does two operations

THREADS = 512  # of a CTA
BUCKET_BYTES = 25 << 20
CAPS = (8, 16, 32, 64, 128, 256)
# What the prediction for few CTAs assumes: how long a load from memory takes while the chip is busy (best, worst), and
# what a multiprocessor can receive a clock.
LATENCY_US = (0.6, 1.0)
RECEIVED_BYTES_PER_CLOCK = 64


def instructions_per_element(hot_loop):
    """{unit: instructions}, "issue" for all of them."""
    counts = hot_loop.loop.histogram()
    found = {unit: sum(counts[name] * PACKED.get(name, 1) for name in names) / hot_loop.elements
             for unit, names in UNITS.items()}
    return {"issue": sum(counts.values()) / hot_loop.elements, **found}


def picoseconds(device, hot_loop, element_bytes):
    """{resource: time that one element takes of it on the whole chip}, "memory" among them."""
    times = {"memory": element_bytes / device.terabytes_per_second}
    clocks_per_picosecond = device.multiprocessors * device.gigahertz / 1000
    for unit, count in instructions_per_element(hot_loop).items():
        rate = ISSUE if unit == "issue" else RATES[unit][device.arch]
        times[unit] = count / rate / clocks_per_picosecond
    return times


HEADINGS = ("device", "type", "memory", "issue", "float32", "multiply", "half", "logic", "float64", "convert", "limit",
            "25 MiB, us")


def rows(kernels, element_bytes):
    """One row for each device and kernel that has a main loop for the device's architecture."""
    found = []
    for device in DEVICES:
        for kernel in kernels:
            if kernel.arch != device.arch or kernel.datatype not in element_bytes:
                continue
            loop = kernel.cheapest("sketch")
            if loop is None:
                continue
            size = element_bytes[kernel.datatype]
            times = picoseconds(device, loop, size)
            limit = max(times, key=times.get)
            whole = BUCKET_BYTES / size * times[limit] / 1e6
            found.append((device.name, kernel.datatype, *(f"{times[unit]:.3f}" for unit in HEADINGS[2:10]), limit,
                          f"{whole:.1f}"))
    return found


def bytes_in_flight(loop):
    """Of one thread: the largest batch of loads on the fast path with no multiply-add between them."""
    largest = batch = 0
    for one in loop.fast_path:
        if one.multiply_adds:
            batch = 0
        if one.load_bytes >= 16:
            batch += one.load_bytes
            largest = max(largest, batch)
    return largest


def cta_bytes_per_us(device, hot_loop, latency_us, overlap):
    """What one CTA alone on a multiprocessor streams. overlap: the part of its arithmetic during which its own next
    loads are not yet on their way; at best a quarter (a scheduler's four warps take turns), at worst all of it."""
    loads = sum(one.load_bytes for one in hot_loop.loop.fast_path if one.load_bytes >= 16)
    batch = bytes_in_flight(hot_loop.loop)
    in_flight = THREADS * batch
    instructions = len(hot_loop.loop.fast_path) * batch / loads
    compute_us = instructions * THREADS / ISSUE / (1000 * device.gigahertz)
    received = RECEIVED_BYTES_PER_CLOCK * 1000 * device.gigahertz
    return min(in_flight / (latency_us + overlap * compute_us), in_flight / compute_us, received)


def cap_rows(kernels, element_bytes):
    """Microseconds for 25 MiB, best and worst, by the number of CTAs."""
    found = []
    for device in DEVICES:
        for kernel in kernels:
            if kernel.arch != device.arch or kernel.datatype not in element_bytes or not kernel.cheapest("sketch"):
                continue
            loop = kernel.cheapest("sketch")
            chip = max(picoseconds(device, loop, element_bytes[kernel.datatype]).values())
            floor = BUCKET_BYTES / element_bytes[kernel.datatype] * chip / 1e6
            cells = []
            for cap in CAPS:
                times = [max(floor, BUCKET_BYTES / cap / cta_bytes_per_us(device, loop, latency, overlap))
                         for latency, overlap in ((LATENCY_US[0], 0.25), (LATENCY_US[1], 1))]
                cells.append(f"{times[0]:.0f}-{times[1]:.0f}")
            found.append((device.name, kernel.datatype, str(bytes_in_flight(loop.loop) * THREADS >> 10), *cells))
    return found


CAP_HEADINGS = ("device", "type", "KiB in flight", *(f"{cap} CTAs" for cap in CAPS))
