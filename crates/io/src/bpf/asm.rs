//! An eBPF assembler: one method an instruction, labels for jumps (Documentation/bpf/standardization/instruction-set.rst).

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::btf::KernelFunction;

/// One instruction as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    code: u8,
    /// Destination in the low half, source in the high half.
    regs: u8,
    off: i16,
    imm: i32,
}

/// Width of a load or store.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Size {
    /// One byte.
    B = 0x10,
    /// Two.
    H = 0x08,
    /// Four.
    W = 0x00,
    /// Eight.
    Dw = 0x18,
}

/// Operations on registers; 64 bits wide.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Op {
    /// dst += src.
    Add = 0x00,
    /// dst -= src.
    Sub = 0x10,
    /// dst *= src.
    Mul = 0x20,
    /// dst /= src, unsigned.
    Div = 0x30,
    /// dst |= src.
    Or = 0x40,
    /// dst &= src.
    And = 0x50,
    /// dst <<= src.
    Lsh = 0x60,
    /// dst >>= src.
    Rsh = 0x70,
    /// dst ^= src.
    Xor = 0xa0,
    /// dst = src.
    Mov = 0xb0,
}

/// Conditions, unsigned.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum If {
    /// dst == src.
    Eq = 0x10,
    /// dst > src.
    Gt = 0x20,
    /// dst >= src.
    Ge = 0x30,
    /// dst & src != 0.
    Set = 0x40,
    /// dst != src.
    Ne = 0x50,
    /// dst < src.
    Lt = 0xa0,
}

/// Register 10: the end of the 512-byte stack.
pub const FP: u8 = 10;

/// A call; its source register says of what: of a helper (0), of a function of the program's own (BPF_PSEUDO_CALL), of one of the
/// kernel's (BPF_PSEUDO_KFUNC_CALL).
const CALL: u8 = 0x85;
const OWN_FUNCTION: u8 = 1 << 4;
const KERNEL_FUNCTION: u8 = 2 << 4;

/// A program being written.
#[derive(Default)]
pub struct Asm {
    insns: Vec<Insn>,
    labels: HashMap<&'static str, usize>,
    jumps: Vec<(usize, &'static str)>,
}

impl Asm {
    fn put(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) -> &mut Asm {
        self.insns.push(Insn { code, regs: dst | src << 4, off, imm });
        self
    }

    /// dst op= imm.
    pub fn op(&mut self, op: Op, dst: u8, imm: i32) -> &mut Asm {
        self.put(0x07 | op as u8, dst, 0, 0, imm)
    }

    /// dst op= src.
    pub fn op_reg(&mut self, op: Op, dst: u8, src: u8) -> &mut Asm {
        self.put(0x0f | op as u8, dst, src, 0, 0)
    }

    /// dst = the low 32 bits of dst + imm.
    pub fn add_word(&mut self, dst: u8, imm: i32) -> &mut Asm {
        self.put(0x04 | Op::Add as u8, dst, 0, 0, imm)
    }

    /// dst = imm.
    pub fn mov(&mut self, dst: u8, imm: i32) -> &mut Asm {
        self.op(Op::Mov, dst, imm)
    }

    /// dst = src.
    pub fn mov_reg(&mut self, dst: u8, src: u8) -> &mut Asm {
        self.op_reg(Op::Mov, dst, src)
    }

    /// dst = src + imm.
    pub fn lea(&mut self, dst: u8, src: u8, imm: i32) -> &mut Asm {
        self.mov_reg(dst, src).op(Op::Add, dst, imm)
    }

    /// Swaps the low 16 bits of dst from network order to the machine's and clears the rest.
    pub fn be16(&mut self, dst: u8) -> &mut Asm {
        self.put(0xdc, dst, 0, 0, 16)
    }

    /// dst = *(size *)(src + off).
    pub fn load(&mut self, size: Size, dst: u8, src: u8, off: i16) -> &mut Asm {
        self.put(0x61 | size as u8, dst, src, off, 0)
    }

    /// *(size *)(dst + off) = src.
    pub fn store(&mut self, size: Size, dst: u8, off: i16, src: u8) -> &mut Asm {
        self.put(0x63 | size as u8, dst, src, off, 0)
    }

    /// *(size *)(dst + off) = imm.
    pub fn store_imm(&mut self, size: Size, dst: u8, off: i16, imm: i32) -> &mut Asm {
        self.put(0x62 | size as u8, dst, 0, off, imm)
    }

    /// Goes to `label` if dst cond imm.
    pub fn jump_if(&mut self, cond: If, dst: u8, imm: i32, label: &'static str) -> &mut Asm {
        self.jumps.push((self.insns.len(), label));
        self.put(0x05 | cond as u8, dst, 0, 0, imm)
    }

    /// Goes to `label` if dst cond src.
    pub fn jump_if_reg(&mut self, cond: If, dst: u8, src: u8, label: &'static str) -> &mut Asm {
        self.jumps.push((self.insns.len(), label));
        self.put(0x0d | cond as u8, dst, src, 0, 0)
    }

    /// Goes to `label`.
    pub fn jump(&mut self, label: &'static str) -> &mut Asm {
        self.jumps.push((self.insns.len(), label));
        self.put(0x05, 0, 0, 0, 0)
    }

    /// Names the next instruction.
    pub fn label(&mut self, label: &'static str) -> &mut Asm {
        let known = self.labels.insert(label, self.insns.len());
        assert!(known.is_none(), "label {label} twice");
        self
    }

    /// dst = the map.
    pub fn map(&mut self, dst: u8, map: BorrowedFd) -> &mut Asm {
        // BPF_PSEUDO_MAP_FD: the kernel replaces the descriptor by the map's address.
        self.put(0x18, dst, 1, 0, map.as_raw_fd()).put(0, 0, 0, 0, 0)
    }

    /// dst = the address of the value of an array's first entry.
    pub fn map_value(&mut self, dst: u8, map: BorrowedFd) -> &mut Asm {
        // BPF_PSEUDO_MAP_VALUE, with an offset of 0.
        self.put(0x18, dst, 2, 0, map.as_raw_fd()).put(0, 0, 0, 0, 0)
    }

    /// Calls a helper by number.
    pub fn call(&mut self, helper: i32) -> &mut Asm {
        self.put(CALL, 0, 0, 0, helper)
    }

    /// Calls a function that the kernel lends.
    pub fn call_kernel(&mut self, function: KernelFunction) -> &mut Asm {
        self.put(CALL, 0, KERNEL_FUNCTION >> 4, 0, function.0)
    }

    /// Returns r0.
    pub fn exit(&mut self) -> &mut Asm {
        self.put(0x95, 0, 0, 0, 0)
    }

    /// The instructions, with every jump resolved.
    pub fn finish(mut self) -> Vec<Insn> {
        for (at, label) in &self.jumps {
            let to = self.labels.get(label).unwrap_or_else(|| panic!("no label {label}"));
            self.insns[*at].off = (*to as isize - *at as isize - 1) as i16;
        }
        self.insns
    }
}

/// Puts a function behind a program, which is called where the program calls functions of the kernel.
pub fn stand_in(mut insns: Vec<Insn>, function: Vec<Insn>) -> Vec<Insn> {
    let end = insns.len();
    for (at, insn) in insns.iter_mut().enumerate().filter(|(_, i)| i.code == CALL && i.regs == KERNEL_FUNCTION) {
        // Counted from the next instruction.
        (insn.regs, insn.imm) = (OWN_FUNCTION, (end - at - 1) as i32);
    }
    insns.extend(function);
    insns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_for_the_kernels_functions_is_behind_the_program() {
        let (mut a, mut other) = (Asm::default(), Asm::default());
        a.mov(1, 2).call(7).call_kernel(KernelFunction(9)).exit();
        other.mov(0, 5).exit();
        let insns = stand_in(a.finish(), other.finish());
        assert_eq!(insns[1], Insn { code: CALL, regs: 0, off: 0, imm: 7 });
        assert_eq!(insns[2], Insn { code: CALL, regs: OWN_FUNCTION, off: 0, imm: 1 });
        assert_eq!(insns[4], Insn { code: 0xb7, regs: 0, off: 0, imm: 5 });
        assert_eq!(insns.len(), 6);
    }

    #[test]
    fn jumps_count_from_the_next_instruction() {
        let mut a = Asm::default();
        a.mov(0, 1).jump_if(If::Eq, 0, 1, "end").mov(0, 2).label("end").exit();
        let insns = a.finish();
        assert_eq!(insns[1], Insn { code: 0x15, regs: 0, off: 1, imm: 1 });
        assert_eq!(insns[0], Insn { code: 0xb7, regs: 0, off: 0, imm: 1 });
        assert_eq!(size_of::<Insn>(), 8);
    }
}
