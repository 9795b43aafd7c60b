"""Reads the machine code in a cubin: instructions, loops, and the way through a loop that is taken when all goes well.

Machine code from compute capability 7.0 on has 16 bytes an instruction. Only what counting needs is decoded: the
operation, where branches go, how many bytes a load fetches. No disassembler is needed, which not every CUDA Toolkit
brings along.
"""
import collections
import dataclasses
import re
import struct

# Operations by the low nine bits (the other three of an opcode are the form of its operands).
NAMES = {
    0x02: "MOV", 0x03: "P2R", 0x04: "R2P", 0x05: "CS2R", 0x06: "VOTE", 0x07: "SEL", 0x08: "FSEL", 0x09: "FMNMX", 0x0b: "FSETP",
    0x0c: "ISETP", 0x0f: "VIMNMX3", 0x10: "IADD3", 0x11: "LEA", 0x12: "LOP3", 0x16: "PRMT", 0x17: "IMNMX", 0x19: "SHF",
    0x1c: "PLOP3", 0x20: "FMUL", 0x21: "FADD", 0x23: "FFMA", 0x24: "IMAD", 0x25: "IMAD.WIDE", 0x27: "IMAD.HI",
    0x28: "DMUL", 0x29: "DADD", 0x2a: "DSETP", 0x2b: "DFMA", 0x30: "HADD2", 0x31: "HFMA2", 0x32: "HMUL2",
    0x34: "HSETP2", 0x36: "VIADD", 0x3e: "F2FP", 0x40: "HMNMX2", 0x46: "VIADDMNMX", 0x47: "VHMNMX", 0x48: "VIMNMX",
    0x49: "FFMA2", 0x4b: "FADD2", 0x76: "FMNMX3", 0x82: "UMOV", 0x86: "VOTEU", 0x87: "USEL",
    0x8c: "UISETP", 0x90: "UIADD3", 0x91: "ULEA", 0x92: "ULOP3", 0x96: "UPRMT", 0x99: "USHF", 0xa4: "UIMAD",
    0xb9: "ULDC", 0xbd: "UFLO", 0xca: "R2UR", 0x104: "F2F", 0x105: "F2I", 0x106: "I2F", 0x108: "MUFU", 0x109: "POPC",
    0x110: "F2F", 0x111: "F2I", 0x112: "I2F", 0x118: "NOP", 0x119: "S2R", 0x11d: "BAR",
    0x141: "BSYNC", 0x142: "BREAK", 0x144: "CALL", 0x145: "BSSY", 0x146: "YIELD", 0x147: "BRA", 0x148: "WARPSYNC",
    0x149: "BRX", 0x14d: "EXIT", 0x150: "RET", 0x158: "BRXU", 0x15d: "NANOSLEEP", 0x17e: "LDG", 0x180: "LD", 0x181: "LDG", 0x182: "LDC", 0x183: "LDL",
    0x184: "LDS", 0x185: "ST", 0x186: "STG", 0x187: "STL", 0x188: "STS", 0x189: "SHFL", 0x18a: "ATOM", 0x18c: "ATOMS",
    0x18d: "ATOMS", 0x18e: "RED", 0x18f: "CCTL", 0x192: "MEMBAR", 0x1a8: "ATOMG", 0x1ac: "LDCU", 0x1c2: "R2UR",
    0x1c3: "S2UR", 0x1c4: "REDUX",
}
NAMES_BEFORE_100 = {0x35: "HFMA2"}
NAMES_FROM_100 = {0x35: "IADD"}
END_A_BLOCK = ("BRA", "BRX", "BRXU", "EXIT", "RET")
NO_REGISTER = 255
ALWAYS = 7
LOAD_BYTES = {4: 4, 5: 8, 6: 16}


@dataclasses.dataclass
class Instruction:
    address: int
    name: str
    word: int
    target: int | None = None  # of a branch
    conditional: bool = False  # runs, or branches, only where a predicate holds
    load_bytes: int = 0        # from global memory

    @property
    def funnel_shift(self):
        """Shifts through two registers that differ, as unaligned data is put together."""
        first, last = self.word >> 24 & 255, self.word >> 64 & 255
        return self.name == "SHF" and NO_REGISTER not in (first, last) and first != last

    @property
    def multiply_adds(self):
        """Fused floating-point multiply-adds of one thread; HFMA2 of nothing but zeros is a way to load a constant."""
        if self.name == "HFMA2":
            return 0 if self.word >> 24 & 255 == NO_REGISTER else 2
        return {"FFMA": 1, "DFMA": 1, "FFMA2": 2}.get(self.name, 0)

    @property
    def additions(self):
        return {"FADD": 1, "DADD": 1, "FADD2": 2}.get(self.name, 0)


def decode(code, arch):
    """The instructions of a section, made for compute capability `arch` (75, 80, ...)."""
    names = NAMES | (NAMES_FROM_100 if arch >= 100 else NAMES_BEFORE_100)
    instructions = []
    for address in range(0, len(code), 16):
        word = int.from_bytes(code[address:address + 16], "little")
        operation = word & 0x1ff
        one = Instruction(address, names.get(operation, f"?{operation:03x}"), word,
                          conditional=word >> 12 & 15 != ALWAYS)
        if one.name == "BRA":
            offset = word >> 34 & (1 << 48) - 1
            if offset >> 47:
                offset -= 1 << 48
            if arch >= 90:
                offset = offset << 8 | word >> 16 & 255
            one.target = address + 16 + 4 * offset
            predicate_operand = word >> 87 & 15 != ALWAYS
            uniform_predicate = word & 0xfff == 0x547 and word >> 24 & 15 != ALWAYS
            divergence = word >> 91 & 1 or word >> 32 & 3 in (2, 3)  # .DIV, .CONV
            one.conditional = bool(one.conditional or predicate_operand or uniform_predicate or divergence)
        elif operation == 0x17e:
            one.load_bytes = 32
        elif operation == 0x181:
            one.load_bytes = LOAD_BYTES.get(word >> 73 & 7, 1)
        instructions.append(one)
    return instructions


@dataclasses.dataclass
class Section:
    """The code of one kernel and of the functions it calls."""
    name: str
    instructions: list
    functions: list  # (address, name), ascending

    def function_at(self, address):
        found = [name for begin, name in self.functions if begin <= address]
        return found[-1] if found else self.name


def read_cubin(path, arch):
    """[Section] of every kernel in a cubin for compute capability `arch` (75, 80, ...)."""
    data = path.read_bytes()
    if data[:4] != b"\x7fELF":
        raise ValueError(f"{path}: is not an ELF file")
    table, = struct.unpack_from("<Q", data, 0x28)
    count, strings = struct.unpack_from("<HH", data, 0x3c)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]

    def text(section, offset):
        begin = headers[section][4] + offset
        return data[begin:data.index(b"\0", begin)].decode()

    names = [text(strings, h[0]) for h in headers]
    functions = collections.defaultdict(list)
    for header in headers:
        if header[1] != 2:  # SHT_SYMTAB
            continue
        for at in range(header[4], header[4] + header[5], 24):
            name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            if info & 15 == 2:  # STT_FUNC
                functions[section].append((value, text(header[6], name)))
    return [Section(name[len(".text."):], decode(data[h[4]:h[4] + h[5]], arch), sorted(functions[i]))
            for i, (name, h) in enumerate(zip(names, headers)) if name.startswith(".text.")]


@dataclasses.dataclass
class Block:
    instructions: list
    successors: list  # indices of blocks


def blocks_of(instructions):
    index_of = {one.address: i for i, one in enumerate(instructions)}
    leaders = {0}
    for i, one in enumerate(instructions):
        if one.target in index_of:
            leaders.add(index_of[one.target])
        if one.name in END_A_BLOCK:
            leaders.add(i + 1)
    starts = sorted(i for i in leaders if i < len(instructions))
    block_at = {start: number for number, start in enumerate(starts)}
    blocks = []
    for start, end in zip(starts, starts[1:] + [len(instructions)]):
        last = instructions[end - 1]
        successors = []
        if last.name == "BRA" and last.target in index_of:
            successors.append(block_at[index_of[last.target]])
        if (last.name not in END_A_BLOCK or last.conditional) and end in block_at:
            successors.append(block_at[end])
        blocks.append(Block(instructions[start:end], successors))
    return blocks


def depth_first(blocks, entries):
    """(retreating edges, reverse postorder) of the graph."""
    state, order, retreating = {}, [], []
    for entry in entries:
        if entry in state:
            continue
        state[entry] = 1
        stack = [(entry, iter(blocks[entry].successors))]
        while stack:
            node, rest = stack[-1]
            for following in rest:
                if following not in state:
                    state[following] = 1
                    stack.append((following, iter(blocks[following].successors)))
                    break
                if state[following] == 1:
                    retreating.append((node, following))
            else:
                state[node] = 2
                order.append(node)
                stack.pop()
    return retreating, order[::-1]


@dataclasses.dataclass
class Loop:
    function: str
    address: int
    body: dict        # number: Block
    fast: list        # numbers of the blocks of the fast path, in order
    inner_loops: int  # of some size that the fast path goes through, each counted as once

    def instructions(self, numbers=None):
        return [one for n in (self.body if numbers is None else numbers) for one in self.body[n].instructions]

    @property
    def fast_path(self):
        return self.instructions(self.fast)

    def histogram(self):
        return collections.Counter(one.name for one in self.fast_path)


def value_of_block(block):
    """What the fast path maximises, in this order: no calls, bytes loaded, multiply-adds, few instructions."""
    return (-sum(one.name == "CALL" for one in block.instructions),
            sum(one.load_bytes for one in block.instructions if one.load_bytes >= 16),
            sum(one.multiply_adds for one in block.instructions),
            -len(block.instructions))


def fast_path(blocks, body, header, retreating, order):
    """The best way from the loop's header back to it by the order of value_of_block; inner loops are gone through
    once."""
    best = {}
    for node in reversed([n for n in order if n in body]):
        own, found = value_of_block(blocks[node]), None
        for following in blocks[node].successors:
            if following == header:
                candidate = (own, [node])
            elif following in best and (node, following) not in retreating:
                value, path = best[following]
                candidate = (tuple(a + b for a, b in zip(own, value)), [node] + path)
            else:
                continue
            if found is None or candidate[0] > found[0]:
                found = candidate
        if found:
            best[node] = found
    return best[header][1]


def hot_loops(section):
    """The innermost loops around two or more loads of 16 bytes that do a multiply-add for every 16 bytes at least (the
    loops that add up partial results do none), in the order of their addresses."""
    blocks = blocks_of(section.instructions)
    begins = {block.instructions[0].address: n for n, block in enumerate(blocks)}
    entries = [begins[address] for address, _ in section.functions if address in begins]
    # What follows an indirect branch is reached from nowhere else: such blocks count as entries too.
    retreating, order = depth_first(blocks, entries + list(range(len(blocks))))
    predecessors = collections.defaultdict(set)
    for number, block in enumerate(blocks):
        for following in block.successors:
            predecessors[following].add(number)
    bodies = {}
    for latch, header in retreating:
        body = bodies.setdefault(header, {header})
        waiting = [latch]
        while waiting:
            node = waiting.pop()
            if node not in body:
                body.add(node)
                waiting += predecessors[node]
    loops = {}
    for header, body in bodies.items():
        inside = set().union(*(b for h, b in bodies.items() if h != header and h in body and b < body), set())
        if sum(one.load_bytes >= 16 for n in body - inside for one in blocks[n].instructions) < 2:
            continue
        fast = fast_path(blocks, body, header, set(retreating), order)
        path = [one for n in fast for one in blocks[n].instructions]
        if 16 * sum(one.multiply_adds for one in path) < sum(one.load_bytes for one in path):
            continue
        inner = sum(h != header and h in fast and sum(len(blocks[n].instructions) for n in bodies[h]) > 8
                    for h in bodies)
        address = blocks[header].instructions[0].address
        loops[header] = Loop(section.function_at(address), address, {n: blocks[n] for n in sorted(body)}, fast, inner)
    return sorted((loop for header, loop in loops.items()
                   if not any(other != header and other in loop.body for other in loops)), key=lambda loop: loop.address)


def readable(name):
    """A mangled function's own name and, in brackets, the named types among its template and function arguments."""
    mangled = name.split("$")[-1] if "$_Z" in name else name
    if not mangled.startswith("_Z"):
        return name
    at, names = (3 if mangled.startswith("_ZN") else 2), [name]
    while m := re.match(r"\d+", mangled[at:]):
        begin = at + m.end()
        at = begin + int(m.group())
        names.append(mangled[begin:at])
    rest = mangled[at:]
    types = [rest[m.end():m.end() + int(m.group(1))] for m in re.finditer(r"S\d*_(\d+)", rest)]
    return names[-1] + (f"<{', '.join(types)}>" if types else "")
