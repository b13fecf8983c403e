//! The table of messages: what the macro makes of it, and what can be asked of it.

use crate::field::BYTES;

/// A kind of message.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What it is called.
    pub name: &'static str,
    /// Its number, which is a message's first two bytes.
    pub kind: u16,
    /// What it says, by lines.
    pub what: &'static [&'static str],
    /// What it carries besides.
    pub columns: &'static [Column],
    /// What its bytes are, where it carries any.
    pub chain: Option<&'static str>,
    /// What answers it.
    pub answers: &'static [&'static str],
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// What it is called.
    pub name: &'static str,
    /// Its type.
    pub ty: &'static str,
    /// Where its pieces begin, in bytes from the message's first.
    pub at: &'static [usize],
    /// How long they are, in bytes.
    pub sizes: &'static [usize],
    /// What it says, by lines.
    pub what: &'static [&'static str],
}

/// Bytes at the begin of a message that say its kind.
pub(crate) const KIND: usize = size_of::<u16>();

/// Refuses a table, at compile time, in which a field meets another one, is not aligned to its size or does not fit.
pub(crate) const fn check(rows: &[Row]) {
    let mut row = 0;
    while row < rows.len() {
        let mut used: u64 = (1 << KIND) - 1;
        let columns = rows[row].columns;
        let mut column = 0;
        while column < columns.len() {
            let Column { at, sizes, .. } = columns[column];
            let mut piece = 0;
            while piece < at.len() {
                let (at, size) = (at[piece], sizes[piece]);
                assert!(at + size <= BYTES, "a field does not fit");
                assert!(at % if size > 8 { 8 } else { size } == 0, "a field is not aligned");
                let bits = ((1 << size) - 1) << at;
                assert!(used & bits == 0, "two fields meet");
                used |= bits;
                piece += 1;
            }
            column += 1;
        }
        let mut other = 0;
        while other < row {
            assert!(rows[other].kind != rows[row].kind, "two kinds with one number");
            other += 1;
        }
        row += 1;
    }
}

/// Makes an enumeration of messages, how they travel, and the table.
macro_rules! messages {
    (
        $(#[doc = $about:literal])+
        $name:ident {
            $(
                $(#[doc = $what:literal])+
                $variant:ident = $kind:literal $({
                    $( $(#[doc = $doc:literal])+ $field:ident: $ty:ty = $at:expr, )*
                    $( bytes $chain:ident: $bytes:literal, )?
                })? $(=> $($answer:ident)|+)?,
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug)]
        pub enum $name {
            $(
                $(#[doc = $what])+
                $variant $({
                    $( $(#[doc = $doc])+ $field: $ty, )*
                    $( #[doc = $bytes] $chain: ::mem::Chain, )?
                })?,
            )+
        }

        impl $name {
            /// All kinds.
            pub const TABLE: &'static [$crate::table::Row] = &[$(
                $crate::table::Row {
                    name: stringify!($variant),
                    kind: $kind,
                    what: &[$($what),+],
                    columns: &[$($(
                        $crate::table::Column {
                            name: stringify!($field),
                            ty: stringify!($ty),
                            at: &$at,
                            sizes: &<$ty as $crate::field::Field<{ $at.len() }>>::SIZES,
                            what: &[$($doc),+],
                        },
                    )*)?],
                    chain: $crate::table::maybe!($($($bytes)?)?),
                    answers: &[$($(stringify!($answer)),+)?],
                },
            )+];

            /// The kinds that carry bytes, by bit.
            const CARRIERS: u64 = 0 $($($(| { let _ = $bytes; 1 << $kind })?)?)+;

            /// The message that carries it.
            // Whoever makes one knows its kind: only that kind's words are left of this.
            #[inline(always)]
            pub fn into_message(self) -> ::mem::ring::Message {
                match self {
                    $($name::$variant $({ $($field,)* $($chain,)? })? => {
                        #[allow(unused_mut, reason = "some say nothing but what they are")]
                        let mut words: $crate::field::Words = [$kind, 0, 0, 0, 0, 0];
                        $($($crate::field::Field::put($field, &mut words, $at);)*)?
                        ::mem::ring::Message { words, chain: $crate::table::chain!($($($chain)?)?) }
                    })+
                }
            }

            /// Reads a message; one that is none of these gives its chain back to be freed.
            #[inline(always)]
            pub fn from_message(message: ::mem::ring::Message) -> Result<$name, ::mem::Chain> {
                let ::mem::ring::Message { words, chain } = message;
                let kind = words[0] as u16;
                if !chain.is_empty() && (kind >= 64 || $name::CARRIERS >> kind & 1 == 0) {
                    return Err(chain);
                }
                match kind {
                    $($kind => {
                        $($(
                            let Some($field): Option<$ty> = $crate::field::Field::get(&words, $at) else {
                                return Err(chain);
                            };
                        )*)?
                        Ok($name::$variant $({ $($field,)* $($chain: chain,)? })?)
                    })+
                    _ => Err(chain),
                }
            }
        }

        const _: () = $crate::table::check($name::TABLE);
    };
}

/// Of what may be there.
macro_rules! maybe {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// The chain of a message, where it carries one.
macro_rules! chain {
    () => {
        ::mem::Chain::default()
    };
    ($chain:ident) => {
        $chain
    };
}

pub(crate) use {chain, maybe, messages};
