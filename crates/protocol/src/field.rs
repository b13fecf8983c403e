//! How values lie in the 48 bytes of a message that are not its chain.

use wire::Addr;

use crate::codes::{CloseMode, ConnOption, Failure};
use crate::names::{ConnId, Endpoint, ListenerId, Token};

/// The bytes of a message, as the words in which they travel.
pub(crate) type Words = [u64; 6];

/// Bytes in them.
pub(crate) const BYTES: usize = size_of::<Words>();

/// A type that lies in a message in `N` pieces, each at an offset of its own, aligned to its size.
pub(crate) trait Field<const N: usize>: Sized {
    /// Bytes of each piece.
    const SIZES: [usize; N];

    /// Writes it; the bytes were zero.
    fn put(self, words: &mut Words, at: [usize; N]);

    /// Reads it; `None` where no value is written so.
    fn get(words: &Words, at: [usize; N]) -> Option<Self>;
}

/// Writes a piece of at most eight bytes at byte `at`.
#[inline(always)]
fn store(words: &mut Words, at: usize, value: u64) {
    words[at / 8] |= value << (at % 8 * 8);
}

/// The bytes from byte `at` to the end of their word.
#[inline(always)]
fn load(words: &Words, at: usize) -> u64 {
    words[at / 8] >> (at % 8 * 8)
}

macro_rules! numbers {
    ($($ty:ident),*) => {$(
        impl Field<1> for $ty {
            const SIZES: [usize; 1] = [size_of::<$ty>()];

            #[inline(always)]
            fn put(self, words: &mut Words, [at]: [usize; 1]) {
                store(words, at, self as u64);
            }

            #[inline(always)]
            fn get(words: &Words, [at]: [usize; 1]) -> Option<$ty> {
                Some(load(words, at) as $ty)
            }
        }
    )*};
}
numbers!(u16, u32);

macro_rules! names {
    ($($ty:ident),*) => {$(
        impl Field<1> for $ty {
            const SIZES: [usize; 1] = <u32 as Field<1>>::SIZES;

            #[inline(always)]
            fn put(self, words: &mut Words, at: [usize; 1]) {
                self.0.put(words, at);
            }

            #[inline(always)]
            fn get(words: &Words, at: [usize; 1]) -> Option<$ty> {
                u32::get(words, at).map($ty)
            }
        }
    )*};
}
names!(ConnId, ListenerId, Token);

/// A byte, which is 0 or not.
impl Field<1> for bool {
    const SIZES: [usize; 1] = [1];

    #[inline(always)]
    fn put(self, words: &mut Words, [at]: [usize; 1]) {
        store(words, at, self as u64);
    }

    #[inline(always)]
    fn get(words: &Words, [at]: [usize; 1]) -> Option<bool> {
        Some(load(words, at) as u8 != 0)
    }
}

macro_rules! enumerations {
    ($($ty:ident),*) => {$(
        impl Field<1> for $ty {
            const SIZES: [usize; 1] = [1];

            #[inline(always)]
            fn put(self, words: &mut Words, [at]: [usize; 1]) {
                store(words, at, self as u64);
            }

            #[inline(always)]
            fn get(words: &Words, [at]: [usize; 1]) -> Option<$ty> {
                $ty::from_code(load(words, at) as u8)
            }
        }
    )*};
}
enumerations!(CloseMode, ConnOption, Failure);

/// 0 is none.
impl Field<1> for Option<Failure> {
    const SIZES: [usize; 1] = [1];

    #[inline(always)]
    fn put(self, words: &mut Words, [at]: [usize; 1]) {
        store(words, at, self.map_or(0, |failure| failure as u64));
    }

    #[inline(always)]
    fn get(words: &Words, [at]: [usize; 1]) -> Option<Option<Failure>> {
        match load(words, at) as u8 {
            0 => Some(None),
            code => Failure::from_code(code).map(Some),
        }
    }
}

/// The port, then the address as two words, the high half first.
impl Field<2> for Endpoint {
    const SIZES: [usize; 2] = [2, 16];

    #[inline(always)]
    fn put(self, words: &mut Words, [port, addr]: [usize; 2]) {
        self.port.put(words, [port]);
        let [high, low] = self.addr.as_words();
        (words[addr / 8], words[addr / 8 + 1]) = (high, low);
    }

    #[inline(always)]
    fn get(words: &Words, [port, addr]: [usize; 2]) -> Option<Endpoint> {
        let addr = Addr::from_words([words[addr / 8], words[addr / 8 + 1]]);
        Some(Endpoint { addr, port: u16::get(words, [port])? })
    }
}
