//! Functions that the running kernel lends to programs (kfuncs), by name: /sys/kernel/btf/vmlinux lists them
//! (Documentation/bpf/btf.rst).

use std::io;

/// What a program calls a kernel's function by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFunction(pub(super) i32);

impl KernelFunction {
    /// No kernel's: for programs in which something stands in for it ([`stand_in`](super::stand_in)).
    pub const NONE: KernelFunction = KernelFunction(0);

    /// The function of this name; `NotFound` where the kernel has none, or tells no types.
    pub fn named(name: &str) -> io::Result<KernelFunction> {
        let btf = std::fs::read("/sys/kernel/btf/vmlinux")?;
        let id =
            function(&btf, name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name}: none")))?;
        Ok(KernelFunction(id))
    }
}

/// The place of the type that is the function `name`.
fn function(btf: &[u8], name: &str) -> Option<i32> {
    const FUNC: u32 = 12;
    let word = |at: usize| Some(u32::from_ne_bytes(*btf.get(at..)?.first_chunk()?));
    // struct btf_header: magic, version, flags, hdr_len, type_off, type_len, str_off, str_len.
    if word(0)? & 0xffff != 0xeb9f {
        return None;
    }
    let [header, types, types_len, strings, strings_len] = [4, 8, 12, 16, 20].map(|at| word(at).map(|n| n as usize));
    let (header, strings_len) = (header?, strings_len?);
    let names = btf.get(header + strings?..)?.get(..strings_len)?;
    let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
    let name = names.windows(wanted.len()).position(|w| w[1] == wanted[1] && w == wanted)? as u32 + 1;
    let (mut at, end) = (header + types?, header + types? + types_len?);
    let mut id = 0;
    while at < end {
        id += 1;
        // struct btf_type: name_off, info (vlen in bits 0 to 15, kind in 24 to 28), size or type; then what the kind brings.
        let (its_name, info) = (word(at)?, word(at + 4)?);
        let (kind, members) = (info >> 24 & 31, (info & 0xffff) as usize);
        if kind == FUNC && its_name == name {
            return Some(id);
        }
        at += 12
            + match kind {
                // INT, VAR, DECL_TAG.
                1 | 14 | 17 => 4,
                // ARRAY.
                3 => 12,
                // STRUCT, UNION, ENUM64.
                4 | 5 | 19 => 12 * members,
                // ENUM, FUNC_PROTO.
                6 | 13 => 8 * members,
                // DATASEC.
                15 => 12 * members,
                // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG.
                2 | 7..=12 | 16 | 18 => 0,
                _ => return None,
            };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Types of this kind and name, with so many members.
    fn btf(types: &[(u32, &str, usize)]) -> Vec<u8> {
        let (mut names, mut body) = (vec![0], Vec::new());
        for (kind, name, members) in types {
            let words = [names.len() as u32, kind << 24 | *members as u32, 0];
            body.extend(words.iter().flat_map(|w| w.to_ne_bytes()));
            let more = match kind {
                1 => 4,
                4 => 12 * members,
                13 => 8 * members,
                _ => 0,
            };
            body.resize(body.len() + more, 0);
            names.extend([name.as_bytes(), b"\0"].concat());
        }
        let words = [0x0001_eb9f, 24, 0, body.len() as u32, body.len() as u32, names.len() as u32];
        [words.iter().flat_map(|w| w.to_ne_bytes()).collect(), body, names].concat()
    }

    #[test]
    fn a_function_is_found_among_other_types() {
        let types = [(1, "int", 0), (4, "read_tag", 3), (13, "", 2), (12, "read_tags", 0), (12, "read_tag", 0)];
        // A name that is also a structure's is written twice here, and the first is looked for.
        assert_eq!(function(&btf(&types), "read_tags"), Some(4));
        assert_eq!(function(&btf(&types[2..]), "read_tag"), Some(3));
        assert_eq!(function(&btf(&types), "read"), None);
        assert_eq!(function(&btf(&[(31, "x", 0), (12, "read_tag", 0)]), "read_tag"), None, "a kind that is not known");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(mut odd in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..120, to in any::<u8>()) {
            function(&odd, "read_tag");
            let mut good = btf(&[(4, "a", 3), (12, "read_tag", 0)]);
            let at = at % good.len();
            good[at] = to;
            function(&good, "read_tag");
            odd.splice(0..odd.len().min(24), good[..24].iter().copied());
            function(&odd, "read_tag");
        }
    }
}
